#pragma once

#include <string>
#include <vector>

#include "tessera/cost/described_model.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::cost {

enum class Schedule {
  kInterleaved, // one forward, one backward
  kSimple, // all forwards first
  kCustom // an order that somebody wrote; it says itself what is in flight
};

constexpr std::array<std::string_view, 3> choice_names(Schedule /*type*/) {
  return {"interleaved", "simple", "custom"};
}

/// How a model is trained on a cluster. Source: Li et al. 2022, equation (2),
/// with what it leaves out.
struct Strategy {
  int pp = 1;
  int dp = 1;
  int tp = 1;
  int microbatch_size = 1;
  /// pp + 1 indices into the layers; stage k runs [b_k, b_(k+1)).
  std::vector<int> boundaries = {};
  /// Virtual rank -> device; rank (stage, replica, tensor) is
  /// (stage * dp + replica) * tp + tensor.
  std::vector<int> device_of_rank = {};
  /// Letters the devices were laid out by; "" for any other placement.
  std::string placement = "PDT";
  Schedule schedule = Schedule::kInterleaved;
  /// Of kInterleaved. 0: stages keep the fixed order of one forward, one
  /// backward, in which stage k holds at most pp - k microbatches. Above: the
  /// runtime's order, in which stages run what is ready, backwards first, and
  /// any stage may hold this many.
  int active_microbatches = 0;
  /// Of a traced model with tp > 1, also whether the ranks of a tensor-parallel
  /// group bring the same samples.
  Distribution distribution = Distribution::kAsMeasured;
  bool same_samples = false;
  bool activation_checkpointing = true;
  bool shard_optimizer_state = false;
  /// Gradients travel while the last microbatch's backward still runs.
  bool overlap_gradients = false;

  int devices() const {
    return pp * dp * tp;
  }
  int rank(int stage, int replica, int tensor) const {
    return (stage * dp + replica) * tp + tensor;
  }
  int microbatches(int global_batch_size) const {
    return global_batch_size / dp / microbatch_size;
  }
};

/// Devices in the order `device_order`, laid out by `letters` (the right-most
/// varies fastest): what Strategy::device_of_rank holds.
std::vector<int>
lay_out(const Strategy& strategy, const std::string& letters, const std::vector<int>& device_order);

/// Throws: ConfigError when degrees do not fill the cluster, the batch does not
/// divide, or boundaries are not pp ascending stages over all layers.
void validate(const Strategy& strategy, int devices, int layers, int global_batch_size);

} // namespace tessera::cost
