// What a simulation says: events, memory, and the result.

#include <algorithm>
#include <utility>

#include "tessera/simulator/pipeline.h"

namespace tessera::simulator {

std::vector<int> run_ranks(const cost::Strategy& strategy) {
  std::vector<int> used = strategy.device_of_rank;
  std::sort(used.begin(), used.end());
  std::vector<int> ranks;
  for (const int device : strategy.device_of_rank) {
    const auto place = std::lower_bound(used.begin(), used.end(), device);
    ranks.push_back(static_cast<int>(place - used.begin()));
  }
  return ranks;
}

void Pipelines::record(
    int rank,
    int replica,
    const std::string& name,
    const std::string& category,
    int microbatch,
    int lane,
    double start,
    double end,
    double bytes) {
  if (!options_.keep_events) {
    return;
  }
  for (int t = 0; t < strategy_.tp; ++t) {
    timeline::Event event;
    event.name = name;
    event.category = category;
    event.rank = run_rank_[at(strategy_.rank(rank, replica, t))];
    event.pp_rank = rank;
    event.microbatch = microbatch;
    event.step = 0;
    event.lane = lane;
    event.start_us = start * 1e6;
    event.end_us = end * 1e6;
    event.bytes = static_cast<std::int64_t>(bytes);
    result_.timeline.events.push_back(std::move(event));
  }
}

const cost::StageMemory& Pipelines::memory_of(int stage, int replica) {
  const StageRun& run = stage_run(stage, replica);
  const bool had_backward = run.backwards_left < microbatches_;
  std::vector<cost::StageMemory>& known =
      memory_[{strategy_.microbatch_of(replica), stage, had_backward}];
  while (known.size() <= at(run.in_flight)) {
    cost::StageState state = cost::stage_state(
        strategy_, static_cast<int>(known.size()), microbatches_, host_pace_[at(stage)]);
    state.had_backward = had_backward;
    known.push_back(table_of(replica).memory(first_layer(stage), last_layer(stage), state));
  }
  return known[at(run.in_flight)];
}

double Pipelines::bytes_of(int rank, int replica, int stage) {
  double bytes = 0;
  for (int one = rank; one < strategy_.stages(); one += strategy_.pp) {
    const cost::StageMemory& memory = memory_of(one, replica);
    bytes += memory.total() - (one == stage ? 0 : memory.working + memory.logits);
  }
  return bytes;
}

void Pipelines::sample_memory(int rank, int replica, int stage) {
  if (replica == 0) {
    result_.memory_over_time[at(rank)].push_back({now_ * 1e6, bytes_of(rank, replica, stage)});
  }
}

SimulationResult Pipelines::result() {
  SimulationResult result = std::move(result_);
  result.iteration_seconds = iteration_;
  result.seconds_range = cost::seconds_range(model_, cluster_, iteration_);
  result.computed_rates = network_.computed();
  double busy = 0;
  for (int d = 0; d < strategy_.dp; ++d) {
    busy += busy_seconds_[at(alike_.first[at(d)])] * strategy_.tp;
  }
  const double whole = span_seconds_ * strategy_.devices();
  result.bubble_share = whole > 0 ? 1 - busy / whole : 0;
  result.timeline.world_size = strategy_.devices();
  result.timeline.origin = "simulated";
  const auto& constants = options_.constants;
  for (int rank = 0; rank < strategy_.pp; ++rank) {
    for (int d = 0; d < strategy_.dp; ++d) {
      const double bytes = unit(rank, alike_.first[at(d)]).peak_bytes;
      for (int t = 0; t < strategy_.tp; ++t) {
        result.memory_high_water.push_back(bytes);
        result.needed_bytes.push_back(
            (bytes + constants.context_bytes) / cost::usable_share(model_, constants));
      }
    }
  }
  return result;
}

} // namespace tessera::simulator
