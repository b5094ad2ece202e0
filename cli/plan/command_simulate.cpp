#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/cut_moves.h"
#include "tessera/planner/pricer.h"
#include "tessera/schedule/schedule.h"
#include "tessera/simulator/interval.h"
#include "tessera/simulator/simulate.h"
#include "tessera/timeline/timeline.h"

#include "cli/command.h"
#include "cli/number_check.h"
#include "cli/plan/planning.h"
#include "cli/text_file.h"

namespace tessera::cli {

namespace simulate_command {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

struct Options {
  PlanningInput input;
  int pp = 0;
  int dp = 0;
  int tp = 1;
  std::string tensor_kind;
  bool prescaled_batch = false;
  int microbatch_size = 1;
  std::string placement = "PDT";
  std::vector<int> boundaries;
  std::vector<int> node_order;
  std::string custom_schedule;
  double jitter_percent = 0;
  int draws = 100;
  std::vector<std::string> slow_devices;
  double device_hours = 0;
  double checkpoint_seconds = 0;
  double restart_seconds = 0;
  int stages_per_rank = 1;
  std::string timeline_file;
  std::string chrome_trace_file;
};

// How tensor-parallel groups divide the model. Measured layers are as they were measured; those of
// a model of sizes divide sequences too, unless a kind is given.
cost::Distribution distribution_of(const Options& options, const cost::DescribedModel& model) {
  const bool chosen = model.traced() != nullptr || model.sized() != nullptr;
  if (options.tp == 1 || (options.tensor_kind.empty() && model.traced() == nullptr)) {
    return cost::Distribution::kAsMeasured;
  }
  if (!chosen) {
    throw ConfigError(str(
        "--tensor-kind ",
        options.tensor_kind,
        ": the layers of this model were measured at their degrees, however these were reached; "
        "leave the option out"));
  }
  return Choice<cost::Distribution>(options.tensor_kind.empty() ? "speed" : options.tensor_kind)
      .value();
}

// The strategy of the options; without degrees, the best of a search.
cost::Strategy strategy_of(
    const Options& options,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const planner::SearchOptions& search) {
  if (options.pp == 0 && options.dp == 0) {
    return search_with_progress(model, cluster, search).best.front().strategy;
  }
  if (options.pp == 0 || options.dp == 0) {
    throw ConfigError(
        "--pp and --dp belong together; write both, or neither to simulate "
        "the best strategy");
  }
  const planner::Pricer pricer(model, cluster, search);
  const planner::Point point = {
      options.pp,
      options.dp,
      options.tp,
      options.microbatch_size,
      distribution_of(options, model),
      options.tp > 1 && model.traced() && options.prescaled_batch,
      options.stages_per_rank};
  cost::Strategy strategy = pricer.strategy(point);
  strategy.placement = options.placement;
  std::vector<int> nodes(cluster.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  if (!options.node_order.empty()) {
    nodes = options.node_order;
    planner::check_node_order(nodes, cluster, "--node-order");
  }
  const int layers = static_cast<int>(model.layers.size());
  const bool given = !options.boundaries.empty();
  strategy.boundaries =
      given ? options.boundaries : planner::even_layers(layers, strategy.stages());
  strategy.device_of_rank = planner::devices_in_order(cluster, nodes);
  cost::validate(strategy, cluster.device_count(), layers, model.global_batch_size);
  strategy.device_of_rank = cost::lay_out(strategy, options.placement, strategy.device_of_rank);
  if (!given) {
    if (auto best = pricer.assigned(strategy, pricer.table(point))) {
      return planner::with_moved_cuts(std::move(*best), model, cluster, search).strategy;
    }
  }
  return strategy;
}

// Devices as "3:1.5", the number and how many times as long it computes.
std::map<int, double> slow_devices_of(const std::vector<std::string>& texts) {
  std::map<int, double> slow;
  for (const std::string& text : texts) {
    int device = 0;
    double factor = 0;
    char end = 0;
    if (std::sscanf(text.c_str(), "%d:%lf%c", &device, &factor, &end) != 2) {
      throw ConfigError(
          str("--slow-device: found \"", text, "\"; write a device and a factor, as 3:1.5"));
    }
    slow[device] = factor;
  }
  return slow;
}

void show_what_varies(
    const Options& options,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    simulator::SimulationOptions simulation,
    double seconds) {
  if (options.jitter_percent > 0) {
    simulation.jitter = options.jitter_percent / 100;
    const simulator::TimeInterval interval =
        simulator::simulate_interval(model, cluster, strategy, simulation, options.draws);
    std::printf(
        "with jitter   %.4f s, nine in ten of %d draws from %.4f to %.4f s\n",
        interval.median,
        options.draws,
        interval.low,
        interval.high);
    seconds = interval.median;
  }
  if (options.device_hours > 0) {
    simulator::Failures failures = {
        .device_mean_time = options.device_hours * 3600,
        .checkpoint_seconds = options.checkpoint_seconds,
        .restart_seconds = options.restart_seconds};
    failures.steps_between_checkpoints =
        simulator::best_checkpoint_interval(seconds, strategy.devices(), failures);
    std::printf(
        "with failures %.4f s, with a checkpoint every %.0f steps\n",
        simulator::seconds_with_failures(seconds, strategy.devices(), failures),
        failures.steps_between_checkpoints);
  }
}

void run(const Options& options) {
  const cost::Cluster cluster = cluster_of(options.input);
  const cost::DescribedModel model = model_of(options.input, cluster);
  const planner::SearchOptions search = search_options(options.input, model, cluster);
  cost::Strategy strategy = strategy_of(options, model, cluster, search);
  simulator::SimulationOptions simulation;
  simulation.constants = search.constants;
  if (!options.custom_schedule.empty()) {
    strategy.schedule = cost::Schedule::kCustom;
    simulation.custom_order = schedule::parse_order(options.custom_schedule);
  }
  simulation.keep_events = !options.timeline_file.empty() || !options.chrome_trace_file.empty();
  simulation.slow_devices = slow_devices_of(options.slow_devices);
  const auto start = std::chrono::steady_clock::now();
  const simulator::SimulationResult result =
      simulator::simulate(model, cluster, strategy, simulation);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf(
      "%s  schedule %s\n"
      "iteration     %.4f s (nine of ten measured runs: %.4f to %.4f s)\n"
      "bubble        %.1f %%\n",
      planner::headline(strategy).c_str(),
      std::string(text_of(strategy.schedule)).c_str(),
      result.iteration_seconds,
      result.seconds_range.low,
      result.seconds_range.high,
      100 * result.bubble_share);
  show_what_varies(options, model, cluster, strategy, simulation, result.iteration_seconds);
  std::printf("stage  tensors GiB  device needs GiB\n");
  const std::vector<int> node_of_device = cluster.node_of_device();
  for (int k = 0; k < strategy.pp; ++k) {
    const auto rank = static_cast<std::size_t>(strategy.rank(k, 0, 0));
    const int node = node_of_device[static_cast<std::size_t>(strategy.device_of_rank[rank])];
    const int kind = cluster.nodes[static_cast<std::size_t>(node)].kind;
    const double has = cluster.kinds[static_cast<std::size_t>(kind)].memory_bytes;
    std::printf(
        "%5d  %11.2f  %16.2f%s\n",
        k,
        result.memory_high_water[rank] / kGib,
        result.needed_bytes[rank] / kGib,
        result.needed_bytes[rank] > has
            ? str("  does not fit: a device has ", has / kGib, " GiB").c_str()
            : "");
  }
  std::printf("simulated %d devices in %.2f s\n", strategy.devices(), took.count());
  if (!options.timeline_file.empty()) {
    write_text_file(options.timeline_file, timeline::to_json(result.timeline));
  }
  if (!options.chrome_trace_file.empty()) {
    write_text_file(options.chrome_trace_file, timeline::to_chrome_trace(result.timeline));
  }
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_planning_options(app, options->input);
  app.add_option("--pp", options->pp, "pipeline degree; none: the best strategy");
  app.add_option("--dp", options->dp, "data-parallel replicas");
  app.add_option(
         "--stages-per-rank",
         options->stages_per_rank,
         "stages that a pipeline rank holds in turns, with --active-microbatches")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--tp", options->tp, "tensor-parallel degree")->capture_default_str();
  app.add_option(
         "--tensor-kind",
         options->tensor_kind,
         "with --tp: speed, memory or 2d of a preset (speed when not given); speed or 2d of a "
         "model "
         "of sizes (divided sequences when not given)")
      ->check(CLI::IsMember({"speed", "memory", "2d"}));
  app.add_flag(
      "--prescaled-batch",
      options->prescaled_batch,
      "of a preset with --tp: its ranks bring the same samples");
  app.add_option("--mbs", options->microbatch_size, "microbatch size")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--placement", options->placement, "letters, as PDT")->capture_default_str();
  app.add_option(
         "--layer-boundaries",
         options->boundaries,
         "as 0;15;30; the best assignment when not given")
      ->delimiter(';');
  app.add_option(
         "--node-order",
         options->node_order,
         "nodes of the cluster file in the order in which ranks take their devices, as 2,0,1; that "
         "of the file when not given")
      ->delimiter(',');
  app.add_option("--custom-schedule", options->custom_schedule, "as \"0F 1F 0B 1B\"");
  app.add_option(
         "--jitter", options->jitter_percent, "deviation of every task's computation, percent")
      ->check(non_negative_number());
  app.add_option("--draws", options->draws, "simulations with jitter")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option(
      "--slow-device",
      options->slow_devices,
      "a device and how many times as long it computes, 3:1.5");
  app.add_option(
         "--device-hours", options->device_hours, "mean hours between two failures of one device")
      ->check(positive_number());
  app.add_option(
         "--checkpoint-seconds", options->checkpoint_seconds, "with --device-hours: to write one")
      ->check(non_negative_number());
  app.add_option(
         "--restart-seconds",
         options->restart_seconds,
         "with --device-hours: until a job that failed trains again")
      ->check(non_negative_number());
  app.add_option("--timeline", options->timeline_file, "write the timeline of all ranks");
  app.add_option(
      "--chrome-trace",
      options->chrome_trace_file,
      "write the timeline for chrome://tracing and Perfetto");
  app.callback([options] { run(*options); });
}

const RegisterCommand registered({
    "simulate",
    "execute a strategy on a described cluster, event by event",
    set_up,
});

} // namespace
} // namespace simulate_command

} // namespace tessera::cli
