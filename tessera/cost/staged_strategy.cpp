#include "tessera/cost/staged_strategy.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera::cost {

Strategy alone(const StagedStrategy& strategy, int stage) {
  const OwnStage& own = strategy.stages[at(stage)];
  Strategy result;
  result.dp = own.replicas();
  result.tp = own.way.degree;
  result.boundaries = {own.first_layer, own.last_layer};
  result.device_of_rank = own.devices;
  result.schedule = strategy.schedule;
  result.distribution = own.way.distribution;
  result.same_samples = own.way.same_samples;
  result.activation_checkpointing = own.recomputes;
  result.shard_optimizer_state = strategy.shard_optimizer_state;
  return result;
}

StagedStrategy staged(const Strategy& strategy, int global_batch_size) {
  StagedStrategy result;
  result.microbatches = strategy.microbatches(global_batch_size);
  result.schedule = strategy.schedule;
  result.shard_optimizer_state = strategy.shard_optimizer_state;
  const int width = strategy.dp * strategy.tp;
  for (int k = 0; k < strategy.pp; ++k) {
    OwnStage stage;
    stage.first_layer = strategy.boundaries[at(k)];
    stage.last_layer = strategy.boundaries[at(k) + 1];
    stage.way = {strategy.tp, strategy.distribution, strategy.same_samples};
    stage.recomputes = strategy.activation_checkpointing;
    const auto first = strategy.device_of_rank.begin() + k * width;
    stage.devices.assign(first, first + width);
    for (int d = 0; d < strategy.dp; ++d) {
      stage.samples.push_back(strategy.microbatch_of(d));
    }
    result.stages.push_back(std::move(stage));
  }
  return result;
}

void validate(const StagedStrategy& strategy, int devices, int layers, int global_batch_size) {
  const auto fail = [](const auto&... parts) {
    throw ConfigError(str("strategy of own widths: ", parts...));
  };
  if (strategy.microbatches < 1 || global_batch_size % strategy.microbatches != 0) {
    fail(
        strategy.microbatches,
        " microbatches do not divide the global batch size ",
        global_batch_size);
  }
  const int together = global_batch_size / strategy.microbatches;
  std::vector<bool> taken(at(devices), false);
  int layer = 0;
  for (std::size_t k = 0; k < strategy.stages.size(); ++k) {
    const OwnStage& stage = strategy.stages[k];
    if (stage.first_layer != layer || stage.last_layer <= layer) {
      fail(
          "stage ",
          k,
          ": found layers ",
          stage.first_layer,
          " to ",
          stage.last_layer,
          "; write a run that begins at ",
          layer);
    }
    layer = stage.last_layer;
    if (stage.way.degree < 1 || stage.samples.empty() ||
        stage.devices.size() != stage.samples.size() * at(stage.way.degree)) {
      fail(
          "stage ",
          k,
          ": found ",
          stage.devices.size(),
          " devices for ",
          stage.samples.size(),
          " replicas of ",
          stage.way.degree);
    }
    for (const int device : stage.devices) {
      if (device < 0 || device >= devices || taken[at(device)]) {
        fail("stage ", k, ": device ", device, " is not there, or another stage has it");
      }
      taken[at(device)] = true;
    }
    for (const int samples : stage.samples) {
      if (samples < 1) {
        fail("stage ", k, ": found a replica of ", samples, " samples; write 1 or more");
      }
    }
    const int sum = std::accumulate(stage.samples.begin(), stage.samples.end(), 0);
    if (sum != together) {
      fail("stage ", k, ": its replicas have ", sum, " samples of a microbatch of ", together);
    }
  }
  if (layer != layers) {
    fail("its stages have ", layer, " of ", layers, " layers");
  }
}

} // namespace tessera::cost
