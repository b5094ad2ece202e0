#include "tessera/cost/strategy.h"

#include <algorithm>
#include <cstdint>

#include "tessera/base/error.h"

namespace tessera::cost {

std::vector<int> lay_out(
    const Strategy& strategy,
    const std::string& letters,
    const std::vector<int>& device_order) {
  const topology::RankLayout layout(
      {.pipeline = strategy.pp, .tensor = strategy.tp, .reduced_data = strategy.dp},
      topology::PlacementStrategy(letters));
  std::vector<int> result(device_order.size());
  for (int position = 0; position < layout.world_size(); ++position) {
    const topology::Coordinates at = layout.coordinates(position);
    result[static_cast<std::size_t>(strategy.rank(at.pp, at.rdp, at.tp))] =
        device_order[static_cast<std::size_t>(position)];
  }
  return result;
}

void validate(const Strategy& strategy, int devices, int layers, int global_batch_size) {
  const auto fail = [](const auto&... parts) { throw ConfigError(str("strategy: ", parts...)); };
  if (strategy.pp < 1 || strategy.dp < 1 || strategy.tp < 1 || strategy.microbatch_size < 1) {
    fail("pp, dp, tp and mbs must be 1 or more");
  }
  // The numbers come from files and options, so their products may exceed an int.
  const std::int64_t pipelines = std::int64_t{strategy.pp} * strategy.dp;
  if (pipelines > devices || pipelines * strategy.tp != devices) {
    fail(
        "pp x dp x tp = ",
        strategy.pp,
        " x ",
        strategy.dp,
        " x ",
        strategy.tp,
        " is not the number of devices, ",
        devices);
  }
  const std::vector<int>& unlike = strategy.replica_microbatch;
  if (!unlike.empty()) {
    if (unlike.size() != static_cast<std::size_t>(strategy.dp) ||
        *std::min_element(unlike.begin(), unlike.end()) < 1 ||
        *std::max_element(unlike.begin(), unlike.end()) != strategy.microbatch_size) {
      std::string found;
      for (const int samples : unlike) {
        found += str(found.empty() ? "" : "+", samples);
      }
      fail(
          "found microbatches of ",
          found,
          " samples with mbs ",
          strategy.microbatch_size,
          "; write one of 1 or more samples for each of ",
          strategy.dp,
          ", the most of them as mbs");
    }
    const int samples = strategy.samples_together();
    if (global_batch_size % samples != 0) {
      fail(
          "the replicas' microbatches of ",
          samples,
          " samples together do not divide the global batch size ",
          global_batch_size);
    }
  }
  const std::int64_t together =
      unlike.empty() ? std::int64_t{strategy.dp} * strategy.microbatch_size : 1;
  if (global_batch_size % together != 0) {
    fail("dp x mbs = ", together, " does not divide the global batch size ", global_batch_size);
  }
  if (strategy.stages_per_rank < 1 || (strategy.stages_per_rank > 1 && strategy.pp == 1)) {
    fail(
        "stages_per_rank: found ",
        strategy.stages_per_rank,
        " with pp ",
        strategy.pp,
        "; write 1, or more with pp of 2 or more");
  }
  if (strategy.stages_per_rank > 1 && strategy.schedule == Schedule::kInterleaved &&
      strategy.active_microbatches == 0) {
    fail(
        "stages_per_rank: found ",
        strategy.stages_per_rank,
        " in the fixed order of one forward, one backward, which has no turns; write active "
        "microbatches of 1 or more");
  }
  const auto& cuts = strategy.boundaries;
  bool ascending = cuts.size() == static_cast<std::size_t>(strategy.stages()) + 1 &&
                   cuts.front() == 0 && cuts.back() == layers;
  for (std::size_t i = 1; ascending && i < cuts.size(); ++i) {
    ascending = cuts[i - 1] < cuts[i];
  }
  if (!ascending) {
    fail(
        "layer_boundaries: found ",
        cuts.size(),
        " numbers; write ",
        strategy.stages() + 1,
        " ascending ones from 0 to ",
        layers);
  }
  const std::vector<bool>& whole = strategy.whole_layers;
  if (!whole.empty()) {
    if (whole.size() != static_cast<std::size_t>(layers) || whole.front()) {
      fail(
          "whole_layers: found ",
          whole.size(),
          " values; write one for each of ",
          layers,
          " layers, of which the first is not whole");
    }
    if (strategy.tp == 1 || strategy.same_samples) {
      fail("layers stay whole only with tp of 2 or more and samples of each rank's own");
    }
  }
  if (strategy.device_of_rank.size() != static_cast<std::size_t>(devices)) {
    fail("the placement names ", strategy.device_of_rank.size(), " devices");
  }
}

} // namespace tessera::cost
