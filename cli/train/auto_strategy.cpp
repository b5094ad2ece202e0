#include "cli/train/auto_strategy.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>

#include "tessera/autotune/plan_model.h"
#include "tessera/autotune/probe/probe.h"
#include "tessera/base/json/read.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/comm/world.h"
#include "tessera/planner/description.h"
#include "tessera/planner/planned_config.h"
#include "tessera/planner/to_config.h"

#include "cli/allocator.h"
#include "cli/train/job_preset.h"
#include "cli/train/planned_job.h"
#include "cli/train/preset_source.h"
#include "cli/train/progress.h"

namespace tessera::cli {

namespace {

void say(const std::string& text) {
  if (!is_quiet()) {
    std::printf("strategy auto: %s\n", text.c_str());
  }
}

std::string planned_on(const Job& job, const cost::Cluster& cluster) {
  const PresetRun run = run_of(job);
  PlanOptions options;
  options.precision = run.precision;
  options.search.keep = 3;
  options.search.keep_node_order = true;
  options.optimizer_state_bytes = state_bytes_per_parameter(job);
  // A job that says how layers are recomputed is planned so; for another one recomputing them is a
  // way to save memory where nothing fits otherwise.
  options.activation_checkpointing = job.activation_checkpointing != "none";
  options.search.can_recompute = true;
  follow_job(job, cluster, options.search);
  const Planned planned = autotune::plan_model(
      preset_source(preset_of(job), run.sequence), run.global_batch_size, cluster, options);
  if (!is_quiet()) {
    std::printf(
        "strategy auto: %d combinations of degrees and microbatch sizes on %s; "
        "the best:\n%s",
        planned.found.considered,
        cluster.name.c_str(),
        planned.explanation().c_str());
    std::fflush(stdout);
  }
  const planner::Candidate& best = planned.best();
  auto plan = OrderedJson::parse(planner::to_config_json(best, planned.model));
  if (best.strategy.activation_checkpointing && job.activation_checkpointing == "none") {
    plan[kRecomputationKey] = planner::recomputation_of(best.strategy);
  }
  return plan.dump();
}

/// The newest checkpoint of a folder that is not torn. Loading passes torn ones
/// over in the same way.
std::optional<checkpoint::Candidate> newest_whole(const std::string& directory) {
  std::optional<checkpoint::Candidate> newest;
  if (!directory.empty() && checkpoint::is_directory(directory)) {
    for (const std::string& tag : checkpoint::tags_in(directory)) {
      try {
        auto candidate = checkpoint::find_tag(directory, tag);
        if (!newest || candidate.meta.sequence > newest->meta.sequence) {
          newest = std::move(candidate);
        }
      } catch (const CheckpointError&) {
        // Loading names it.
      }
    }
  }
  return newest;
}

/// The plan of the newest checkpoint, when it is for so many processes, with a
/// line about it; else "".
std::string kept_plan(const std::string& directory, int processes) {
  const auto newest = newest_whole(directory);
  if (!newest) {
    return "";
  }
  const auto content = OrderedJson::parse(newest->meta.user_content);
  const OrderedJson::json_pointer place("/user/strategy");
  if (!content.contains(place)) {
    return "";
  }
  form::Faults faults(newest->path);
  form::Reader strategy(content.at(place), faults);
  int planned_for = 0;
  OrderedJson plan;
  strategy({.name = "processes", .bounds = form::at_least(1)}, planned_for);
  strategy({.name = "plan"}, plan);
  if (planned_for != processes) {
    say(
        str(newest->path,
            " was planned for ",
            planned_for,
            " processes, this run has ",
            processes,
            ": planning anew"));
    return "";
  }
  say(str("the layout of ", newest->path, " is kept (--replan chooses anew)"));
  return plan.dump();
}

/// What rank 0 makes, or on every rank the error that it met. Collective.
std::string
agreed(comm::World& world, comm::ProcessGroup& everyone, const std::function<std::string()>& make) {
  std::string text;
  std::string failure;
  if (world.rank() == 0) {
    try {
      text = make();
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  const c10::IValue all = comm::broadcast_object(
      world, everyone, c10::ivalue::Tuple::create({c10::IValue(text), c10::IValue(failure)}), 0);
  const auto& parts = all.toTupleRef().elements();
  if (!parts[1].toStringRef().empty()) {
    throw ConfigError(str("strategy auto: ", parts[1].toStringRef()));
  }
  return parts[0].toStringRef();
}

/// Prints the largest rank's memory before and after.
void give_memory_back(comm::World& world, comm::ProcessGroup& everyone) {
  const auto before = resident_bytes();
  give_freed_memory_back();
  const auto most = [&](std::int64_t bytes) {
    std::int64_t largest = 0;
    for (const auto& value : comm::all_gather_object(world, everyone, c10::IValue(bytes))) {
      largest = std::max(largest, value.toInt());
    }
    return static_cast<double>(largest) / (1 << 20);
  };
  const double largest_before = most(before);
  const double largest_after = most(resident_bytes());
  if (world.rank() == 0 && !is_quiet()) {
    std::printf(
        "strategy auto: memory of the largest rank %.0f MiB, %.0f MiB after what planning took "
        "was given back\n",
        largest_before,
        largest_after);
    std::fflush(stdout);
  }
}

std::string
plan_of_measured_ranks(const Job& job, comm::World& world, comm::ProcessGroup& everyone) {
  autotune::Effort effort;
  effort.quick = true;
  effort.seconds_a_point = 0.01;
  const cost::Cluster cluster = autotune::measure_cluster(world, effort);
  return agreed(world, everyone, [&] { return planned_on(job, cluster); });
}

/// How many ranks follow each other on one host, host by host, as "2, 1".
std::string ranks_of_hosts(const std::vector<std::string>& host_of_rank) {
  std::vector<std::string> counts;
  for (std::size_t rank = 0; rank < host_of_rank.size();) {
    const std::size_t first = rank;
    while (rank < host_of_rank.size() && host_of_rank[rank] == host_of_rank[first]) {
      ++rank;
    }
    counts.push_back(str(rank - first));
  }
  return join(counts, ", ");
}

std::string ranks_of_hosts(const cost::Cluster& cluster) {
  std::vector<std::string> counts;
  counts.reserve(cluster.nodes.size());
  for (const cost::Node& node : cluster.nodes) {
    counts.push_back(str(node.count));
  }
  return join(counts, ", ");
}

std::string plan_of_file(
    const Job& job,
    const std::string& file,
    comm::World& world,
    comm::ProcessGroup& everyone) {
  return agreed(world, everyone, [&] {
    const cost::Cluster cluster = planner::load_cluster(file);
    const std::string there = ranks_of_hosts(cluster);
    const std::string here = ranks_of_hosts(world.hosts());
    if (there != here) {
      throw ConfigError(
          str("the hosts of '",
              file,
              "' have ",
              there,
              " ranks, those of this run ",
              here,
              "; measure them with tessera probe, or leave --cluster-file out"));
    }
    return planned_on(job, cluster);
  });
}

} // namespace

void choose_strategy(Job& job, const StrategyOptions& options) {
  comm::WorldOptions world_options;
  world_options.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(job.parallel.timeout_seconds * 1000));
  world_options.same_node = job.parallel.same_node_backend;
  const auto world = comm::mpi_world(world_options);
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto everyone = world->new_group("strategy", ranks);
  std::string plan;
  if (options.keep_plan) {
    plan = agreed(
        *world, *everyone, [&] { return kept_plan(job.checkpoint.directory, world->size()); });
  }
  if (plan.empty()) {
    plan = options.cluster_file.empty()
               ? plan_of_measured_ranks(job, *world, *everyone)
               : plan_of_file(job, options.cluster_file, *world, *everyone);
    give_memory_back(*world, *everyone);
  }
  auto parallel = OrderedJson::parse(plan);
  if (parallel.contains(kRecomputationKey)) {
    job.activation_checkpointing = parallel.at(kRecomputationKey).get<std::string>();
    parallel.erase(kRecomputationKey);
  }
  job.parallel = planner::with_plan(job.parallel, parallel.dump());
  if (job.parallel.sharded_data_parallel_degree > 1) {
    // Sharded gradients are clipped by the optimizer's step, as far as the job clips them.
    job.parallel.sdp_gradient_clipping = sharded_clipping(job.optimizer.clip_norm);
  }
  job.plan = plan;
  job.strategy = "given";
}

} // namespace tessera::cli
