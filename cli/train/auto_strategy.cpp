#include "cli/train/auto_strategy.h"

#include <chrono>
#include <cstdio>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/planner/decision.h"
#include "tessera/planner/traced_model.h"

#include "cli/job_preset.h"
#include "cli/planned_config.h"
#include "cli/planning.h"
#include "cli/probe/probe.h"

namespace tessera::cli {

namespace {

std::string planned_on(const Job& job, const cost::Cluster& cluster) {
  PresetRun run = run_of(job);
  run.tensor_degrees = tensor_degrees_of(cluster);
  const cost::DescribedModel model =
      planner::describe_traced(trace_preset(preset_of(job), run), cluster);
  planner::SearchOptions search;
  search.keep = 3;
  search.keep_node_order = true;
  plan_for_runtime(model, cluster, search);
  const planner::SearchResult result = planner::search(model, cluster, search);
  std::printf(
      "strategy auto: %d combinations of degrees and microbatch sizes on %s; "
      "the best:\n%sthe first of them:\n%s",
      result.considered,
      cluster.name.c_str(),
      planner::summary(result).c_str(),
      planner::explain(result.best.front(), model, cluster).c_str());
  std::fflush(stdout);
  return planner::to_config_json(result.best.front(), model);
}

} // namespace

void choose_strategy(Job& job) {
  comm::WorldOptions options;
  options.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(job.parallel.timeout_seconds * 1000));
  options.same_node = job.parallel.same_node_backend;
  const auto world = comm::mpi_world(options);
  probe::Effort effort;
  effort.quick = true;
  effort.seconds_a_point = 0.01;
  const cost::Cluster cluster = probe::measure_cluster(*world, effort);
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto everyone = world->new_group("strategy", ranks);
  std::string plan;
  std::string failure;
  if (world->rank() == 0) {
    try {
      plan = planned_on(job, cluster);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  const c10::IValue agreed = comm::broadcast_object(
      *world, *everyone, c10::ivalue::Tuple::create({c10::IValue(plan), c10::IValue(failure)}), 0);
  const auto& parts = agreed.toTupleRef().elements();
  if (!parts[1].toStringRef().empty()) {
    throw ConfigError(str("strategy auto: ", parts[1].toStringRef()));
  }
  job.parallel = with_plan(job.parallel, parts[0].toStringRef());
  job.strategy = "given";
}

} // namespace tessera::cli
