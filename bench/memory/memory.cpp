// What activation checkpointing and offloading save and cost: a GPT on two pipeline ranks, with and
// without them.
//
//   mpirun -n 2 bench_memory [--layers 24] [--sequence 512] [--dtype bf16] [--mode fast] [--json]
//                            [--strategies each,selective,attentions] [--heads 4] [--dropout 0]
//                            [--offload [--horizon 1,4,100] [--directory D]]
//
// With --offload the inputs that the strategies keep rest in a file; the one without activation
// checkpointing, "none", is what it always is. Each horizon has a table. What the disk can do is
// measured before, by the copies that offloading makes, on all ranks at once; the bytes that a step
// of the fuller rank moves at that rate are its "disk ms". Where they are more than the step
// without offloading takes, the disk is the limit, whatever runs beside it. Memory is what tensors
// of the fuller rank hold at most in a step, over what they hold between steps (parameters and
// gradients): activations and, in all cases alike, what the step works with. The floor of `each`
// are the inputs of the layers; its floor in time is one forward more, 4/3 of the step where a
// backward takes two forwards. "attentions" is the key checkpoint_attentions. All strategies take
// turns, step by step: "over kept" is the best step over the best one of "none", "step by step" the
// middle of the ratios of neighbours.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/host.h"
#include "tessera/context/context.h"
#include "tessera/offload/offloader.h"
#include "tessera/recompute/attentions.h"
#include "tessera/tessera.h"

#include "bench/memory/disk.h"
#include "bench/support/measure.h"
#include "bench/support/memory_count.h"
#include "bench/support/mode.h"
#include "models/gpt.h"

namespace {

using tessera::bench::MemoryCount;
using tessera::models::Gpt;

struct Settings {
  std::string dtype = "f32";
  int microbatches = 4;
  int rows = 1; // of a microbatch
  int sequence = 512;
  int layers = 24;
  int width = 128;
  int heads = 4;
  double dropout = 0;
  int steps = 3;
  std::string mode = "dynamic";
  std::vector<std::string> strategies =
      {"each", "group_3", "contiguous", "selective", "attentions"};
  bool offload = false;
  std::vector<int> horizons = {4};
  std::string directory; // "": the folder for temporary files
  int disk_megabytes = 128; // that a rank copies to measure the disk
  bool json = false;
};

/// One model with its strategy, and what its steps took.
struct Run {
  std::string strategy; // "none": all activations are kept
  std::unique_ptr<tessera::DistributedModel<Gpt>> model;
  std::vector<double> milliseconds;
  std::vector<double> processor_milliseconds; // of this rank's threads
  std::int64_t bytes = 0; // the most of any step after the first ones
  // Of the steps that count, together.
  std::int64_t bytes_out = 0;
  std::int64_t bytes_in = 0;
  std::int64_t waits = 0; // tensors that were not back when they were needed
};

tessera::offload::Counters moved_so_far() {
  const auto& offloader = tessera::context().offloader;
  return offloader == nullptr ? tessera::offload::Counters() : offloader->counters();
}

Gpt make_gpt(const Settings& settings, const std::string& strategy) {
  tessera::models::GptOptions options;
  options.vocab_size = 256;
  options.n_positions = settings.sequence;
  options.n_embd = settings.width;
  options.n_layer = settings.layers;
  options.n_head = settings.heads;
  options.dropout = settings.dropout;
  torch::manual_seed(5);
  Gpt net(options);
  if (settings.dtype == "bf16") {
    net->to(torch::kBFloat16);
  }
  if (strategy != "none" && strategy != "attentions") {
    for (const auto& module : net->modules()) {
      if (dynamic_cast<tessera::nn::SequentialImpl*>(module.get()) != nullptr) {
        tessera::set_activation_checkpointing(*module, {.strategy = strategy});
      }
    }
  }
  return net;
}

void step(Run& run, const Settings& settings, bool counts) {
  // Kept from step to step: of a wide model they are larger than what is to be counted.
  for (const at::Tensor& parameter : run.model->parameters()) {
    if (parameter.grad().defined()) {
      parameter.grad().zero_();
    }
  }
  auto& model = *run.model;
  auto train_step = tessera::step([&](at::Tensor ids, at::Tensor targets) {
    auto loss = torch::nn::functional::cross_entropy(
        model(ids).flatten(0, 1).to(torch::kFloat), targets.flatten());
    model.backward(loss);
  });
  torch::manual_seed(6);
  const auto text =
      torch::randint(0, 256, {settings.rows * settings.microbatches, settings.sequence + 1});
  const auto ids = text.narrow(1, 0, settings.sequence).contiguous();
  const auto targets = text.narrow(1, 1, settings.sequence).contiguous();
  tessera::recompute::set_attentions(run.strategy == "attentions");
  tessera::barrier();
  MemoryCount& memory = MemoryCount::install();
  memory.restart();
  const std::int64_t before = memory.now();
  const auto moved = moved_so_far();
  const double processor = tessera::own_processor_seconds();
  const double time = tessera::bench::milliseconds_of([&] {
    train_step(ids, targets);
    tessera::barrier();
  });
  if (counts) {
    run.processor_milliseconds.push_back(1e3 * (tessera::own_processor_seconds() - processor));
    run.milliseconds.push_back(time);
    run.bytes = std::max(run.bytes, memory.most() - before);
    const auto now = moved_so_far();
    run.bytes_out += now.bytes_out - moved.bytes_out;
    run.bytes_in += now.bytes_in - moved.bytes_in;
    run.waits += now.waits - moved.waits;
  }
}

/// The middle of the ratios of steps that ran one after the other: the machine's speed drifts by
/// more than what is measured, and the best steps may be minutes apart.
double middle_ratio(const Run& run, const Run& kept) {
  std::vector<double> ratios;
  ratios.reserve(run.milliseconds.size());
  for (std::size_t i = 0; i < run.milliseconds.size(); ++i) {
    ratios.push_back(run.milliseconds[i] / kept.milliseconds[i]);
  }
  return tessera::bench::summary_of(ratios).median;
}

nlohmann::json result_of(const Run& run, const Run& kept, const tessera::bench::DiskSpeed& disk) {
  const auto bytes = tessera::allgather(run.bytes);
  const auto of_kept = tessera::allgather(kept.bytes);
  const auto fuller = std::max_element(of_kept.begin(), of_kept.end()) - of_kept.begin();
  const auto time = tessera::bench::summary_of(run.milliseconds);
  const auto steps = static_cast<double>(run.milliseconds.size());
  const auto of_step = [&](std::int64_t value) {
    return static_cast<double>(tessera::allgather(value)[fuller]) / steps;
  };
  const double out = of_step(run.bytes_out) / (1 << 20);
  const double in = of_step(run.bytes_in) / (1 << 20);
  const double waits = of_step(run.waits);
  return {
      {"out_mib", out},
      {"in_mib", in},
      {"waits", waits},
      {"disk_ms", out + in > 0 ? 1e3 * (out / disk.out + in / disk.in) : 0.0},
      {"strategy", run.strategy},
      {"bytes", bytes[fuller]},
      {"of_kept", static_cast<double>(bytes[fuller]) / static_cast<double>(of_kept[fuller])},
      {"best_ms", time.best},
      {"over_kept", time.best / tessera::bench::summary_of(kept.milliseconds).best},
      {"step_by_step", middle_ratio(run, kept)},
      {"processor_ms", tessera::allgather(run.processor_milliseconds)},
      {"ms", run.milliseconds}};
}

void print_disk(const nlohmann::json& results, const tessera::bench::DiskSpeed& disk, int horizon) {
  std::printf(
      "horizon %d; the disk takes %.0f MiB/s of a rank and gives %.0f, %s the system's cache\n"
      "%-12s %10s %10s %10s %10s %10s  %s\n",
      horizon,
      disk.out,
      disk.in,
      disk.direct ? "past" : "through",
      "strategy",
      "MiB out",
      "MiB in",
      "disk ms",
      "step ms",
      "waits",
      "limit");
  const double kept = results.front()["best_ms"].get<double>();
  for (const auto& result : results) {
    const double needs = result["disk_ms"].get<double>();
    std::printf(
        "%-12s %10.1f %10.1f %10.1f %10.1f %10.1f  %s\n",
        result["strategy"].get<std::string>().c_str(),
        result["out_mib"].get<double>(),
        result["in_mib"].get<double>(),
        needs,
        result["best_ms"].get<double>(),
        result["waits"].get<double>(),
        needs == 0     ? "-"
        : needs > kept ? "disk"
                       : "processor");
  }
}

void measure(const Settings& settings, int horizon) {
  tessera::bench::DiskSpeed disk;
  if (settings.offload) {
    disk = tessera::bench::disk_speed(settings.directory, settings.disk_megabytes);
  }
  std::vector<Run> runs;
  std::vector<std::string> strategies = {"none"};
  strategies.insert(strategies.end(), settings.strategies.begin(), settings.strategies.end());
  runs.reserve(strategies.size());
  for (const std::string& strategy : strategies) {
    Run& run = runs.emplace_back();
    run.strategy = strategy;
    run.model = std::make_unique<tessera::DistributedModel<Gpt>>(make_gpt(settings, run.strategy));
  }
  const int warm_up = tessera::bench::warm_up_of(tessera::config_in_force());
  for (int round = -warm_up; round < settings.steps; ++round) {
    for (Run& run : runs) {
      step(run, settings, round >= 0);
    }
  }
  nlohmann::json results = nlohmann::json::array();
  for (const Run& run : runs) {
    results.push_back(result_of(run, runs.front(), disk));
  }
  const auto& offloader = tessera::context().offloader;
  const auto file_bytes = tessera::allgather(offloader == nullptr ? 0 : offloader->host().bytes());
  const auto moved = tessera::allgather(
      offloader == nullptr ? 0 : offloader->counters().bytes_out + offloader->counters().bytes_in);
  if (tessera::rank() != 0) {
    return;
  }
  if (settings.json) {
    std::printf(
        "%s\n",
        nlohmann::json({{"benchmark", "memory"},
                        {"runs", results},
                        {"horizon", horizon},
                        {"disk_out_mib_s", disk.out},
                        {"disk_in_mib_s", disk.in},
                        {"file_bytes", file_bytes},
                        {"moved_bytes", moved}})
            .dump()
            .c_str());
    return;
  }
  std::printf(
      "GPT of %d layers, width %d, %d heads, dropout %g, %d x %d x %d tokens, %s, %s\n%-12s %10s "
      "%10s %10s %10s %13s\n",
      settings.layers,
      settings.width,
      settings.heads,
      settings.dropout,
      settings.microbatches,
      settings.rows,
      settings.sequence,
      settings.dtype.c_str(),
      settings.mode.c_str(),
      "strategy",
      "MiB",
      "of kept",
      "best ms",
      "over kept",
      "step by step");
  for (const auto& result : results) {
    std::printf(
        "%-12s %10.1f %10.3f %10.1f %10.3f %13.3f\n",
        result["strategy"].get<std::string>().c_str(),
        result["bytes"].get<double>() / (1 << 20),
        result["of_kept"].get<double>(),
        result["best_ms"].get<double>(),
        result["over_kept"].get<double>(),
        result["step_by_step"].get<double>());
  }
  if (settings.offload) {
    print_disk(results, disk, horizon);
  }
  for (std::size_t rank = 0; settings.offload && rank < moved.size(); ++rank) {
    std::printf(
        "rank %zu: a file of %.1f MiB, %.1f MiB copied in all\n",
        rank,
        static_cast<double>(file_bytes[rank]) / (1 << 20),
        static_cast<double>(moved[rank]) / (1 << 20));
  }
}

} // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Memory and time of activation checkpointing");
  app.add_option("--dtype", settings.dtype)->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--microbatches", settings.microbatches)->check(CLI::PositiveNumber);
  app.add_option("--rows", settings.rows)->check(CLI::PositiveNumber);
  app.add_option("--sequence", settings.sequence)->check(CLI::PositiveNumber);
  app.add_option("--layers", settings.layers)->check(CLI::PositiveNumber);
  app.add_option("--width", settings.width)->check(CLI::PositiveNumber);
  app.add_option("--heads", settings.heads)->check(CLI::PositiveNumber);
  app.add_option("--dropout", settings.dropout)->check(CLI::Range(0.0, 0.9));
  app.add_option("--steps", settings.steps)->check(CLI::PositiveNumber);
  app.add_option("--mode", settings.mode)->check(CLI::IsMember({"dynamic", "static", "fast"}));
  app.add_option("--strategies", settings.strategies)->delimiter(',');
  app.add_flag("--offload", settings.offload);
  app.add_option("--horizon", settings.horizons)->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--disk-megabytes", settings.disk_megabytes)->check(CLI::PositiveNumber);
  app.add_option("--directory", settings.directory);
  app.add_flag("--json", settings.json);
  CLI11_PARSE(app, argc, argv);
  MemoryCount::install();
  torch::set_num_threads(1);
  try {
    for (const int horizon : settings.offload ? settings.horizons : std::vector<int>{0}) {
      tessera::Config config;
      config.pipeline_parallel_degree = 2;
      config.microbatches = settings.microbatches;
      config.bf16 = settings.dtype == "bf16";
      tessera::bench::set_mode(config, settings.mode);
      config.offload_activations = settings.offload;
      if (settings.offload) {
        config.activation_loading_horizon = horizon;
        if (!settings.directory.empty()) {
          config.offload_directory = settings.directory;
        }
      }
      tessera::init(config);
      measure(settings, horizon);
      tessera::shutdown();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
