#pragma once

#include <string>
#include <vector>

#include "tessera/base/index.h"
#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"
#include "tessera/cost/links.h"
#include "tessera/cost/strategy.h"
#include "tessera/cost/tensor_traffic.h"

namespace tessera::cost {

/// Bytes on one device of a stage, at the peak.
struct StageMemory {
  double weights = 0;
  double gradients = 0; // and the copies that reducing them needs
  double optimizer = 0;
  double activations = 0; // kept for the microbatches in flight
  double working = 0; // temporary memory of the one layer that runs
  double logits = 0;
  double host = 0; // offloaded, in the host's memory and not part of the total

  double total() const {
    return weights + gradients + optimizer + activations + working + logits;
  }
};

/// How far a stage's host is ahead of its device.
enum class HostPace {
  kAhead, // the device is the slower one
  kLevel, // the device waits for its host
  kStalled, // both wait for a network that stalls (Cluster::stalls)
};

/// What determines the memory of a stage besides its layers.
struct StageState {
  int in_flight = 1; // microbatches between forward and backward
  int optimizer_shards = 1; // ranks among which the optimizer state is divided
  int parameter_shards = 1; // those among which parameters and gradients are
  /// A host that is ahead has gathered activations that its device has not used yet.
  HostPace host = HostPace::kLevel;
  bool offloads_optimizer = false; // Strategy::offload_optimizer_state
  bool offloads_activations = false; // Strategy::offload_activations
  bool replicas = false; // Strategy::dp > 1
  int backwards = 1; // of those in flight, the ones whose backward may have begun
  /// Whether a backward of the step has ended on the stage when it holds most microbatches.
  bool had_backward = true;
  /// Whether the pipeline has one stage: what recomputed layers keep then leaves and returns layer
  /// by layer, and not microbatch by microbatch.
  bool by_layer = false;
};

/// Returns sums over runs of layers [first, last) at one tensor-parallel degree and
/// microbatch size, each in constant time. A kind is an index into Cluster::kinds.
/// Threads: any.
///
/// Source: Li et al. 2022, section 3.4, bottom level (a table of measured layers).
/// The paper's table has one entry for all microbatch sizes and placements.
class LayerTable {
 public:
  /// Uses only the degrees, microbatch size, distribution, activation checkpointing and offloading
  /// of activations of the strategy. Throws: ConfigError naming layer, device and degree that were
  /// not measured, or a device whose link to its host is not known where activations are offloaded.
  LayerTable(
      const DescribedModel& model,
      const Cluster& cluster,
      const Strategy& strategy,
      const Constants& constants);

  int layers() const {
    return layers_;
  }
  /// Returns the seconds of one microbatch, forward and backward, without
  /// tensor-parallel traffic.
  double compute_seconds(int kind, int first, int last) const {
    const auto& sums = compute_[at(kind)];
    return sums[at(last)] - sums[at(first)];
  }
  /// Returns the part of compute_seconds that is the forward.
  double forward_seconds(int kind, int first, int last) const {
    const auto& sums = forward_[at(kind)];
    return sums[at(last)] - sums[at(first)];
  }
  /// Returns the part of compute_seconds that a backward computes when it has answered the rank
  /// that waits for it: gradients of weights (Qi et al. 2023). What stage 0 computes last, its
  /// layers without the tail, no rank waits for; there it is part of the backward.
  double deferred_seconds(int kind, int first, int last) const {
    const auto& sums = deferred_[at(kind)];
    return sums[at(last)] - sums[at(first)];
  }
  /// Returns the same of the part that runs behind the last layer, on stage 0.
  double tail_deferred_seconds(int kind) const {
    return tail_deferred_.empty() ? 0 : tail_deferred_[at(kind)];
  }
  /// Returns the part of layer 0's seconds that runs behind the last layer, on stage 0
  /// (DescribedModel::returns_home); 0 for other models.
  PassSeconds tail_seconds(int kind) const {
    return tail_.empty() ? PassSeconds{} : tail_[at(kind)];
  }
  bool returns_home() const {
    return returns_home_;
  }
  /// Returns the seconds of the tensor-parallel traffic of one microbatch (TensorTraffic::seconds).
  PassSeconds tensor_seconds(int first, int last, const StageLinks& place) const {
    return traffic_.seconds(first, last, place);
  }
  /// Returns the same for the part that runs behind the last layer, on stage 0.
  PassSeconds tail_tensor_seconds(const StageLinks& place) const {
    return traffic_.tail_seconds(place);
  }
  /// Returns the time in which the host starts the operators of a microbatch, beside which the
  /// device works; 0 where compute_seconds hold it.
  double host_seconds(int kind, int first, int last) const {
    const auto& sums = host_[at(kind)];
    return sums[at(last)] - sums[at(first)];
  }
  /// Returns whether ranks gather activations, of which the pace of a host decides how long they
  /// are held (StageState::host).
  bool gathers() const {
    return gathered_.back() > 0;
  }
  /// Returns the number of tensor-parallel collectives that it starts among them.
  double collectives(int first, int last) const {
    return collectives_[at(last)] - collectives_[at(first)];
  }
  /// Returns the number of parameter tensors.
  double tensors(int first, int last) const {
    return tensors_[at(last)] - tensors_[at(first)];
  }
  /// Returns the parameters of the largest layer.
  double largest_layer(int first, int last) const;
  /// Returns the bytes of the activation between the layers `cut` - 1 and `cut`.
  double cut_bytes(int cut) const {
    return cut_bytes_[at(cut)];
  }
  /// Returns the number of parameters on one rank; those that several layers of the run
  /// share count once.
  double parameters(int first, int last) const;
  /// Returns how many of them have gradients that are averaged over tensor-parallel
  /// ranks too.
  double whole_parameters(int first, int last) const {
    return whole_parameters_[at(last)] - whole_parameters_[at(first)];
  }
  /// Returns how many of them another part of the model holds as well.
  double tied_parameters(int first, int last) const;
  /// Returns the bytes of the optimizer's state for so many parameters.
  double optimizer_bytes(double parameters) const {
    return parameters * state_bytes_;
  }
  /// Returns the memory of a stage of these layers; requires first < last.
  StageMemory memory(int first, int last, const StageState& state) const;

 private:
  /// Returns the bytes of a traced model's gradients when the stage holds most, beside activations
  /// of so many bytes a microbatch. Those that replicas average have memory of their own; others
  /// come with the first backward, whose activations go as they come.
  double gradient_bytes(int first, int last, const StageState& state, double kept, double working)
      const;
  /// Returns the bytes of offloaded activations that the device holds all the same. Assumes the
  /// default of the key activation_loading_horizon: plans never write it, and prices do not see a
  /// job that does.
  double near_bytes(int first, int last, const StageState& state) const;
  static int held(const StageState& state);

  struct Tie {
    int layer = 0;
    int with = 0;
    double parameters = 0;
  };

  Constants constants_;
  int layers_;
  int tensor_degree_;
  double value_bytes_; // of a weight or an activation
  double state_bytes_; // of the optimizer, for one parameter
  bool returns_home_;
  std::vector<PassSeconds> tail_; // [kind]
  std::vector<std::vector<double>> compute_; // [kind], prefix sums
  std::vector<std::vector<double>> forward_;
  std::vector<std::vector<double>> deferred_;
  std::vector<double> tail_deferred_; // [kind]
  std::vector<std::vector<double>> host_; // [kind], prefix sums
  std::vector<double> collectives_;
  std::vector<double> tensors_;
  std::vector<double> gathered_;
  bool recomputes_;
  bool sized_;
  bool traced_;
  TensorTraffic traffic_;
  std::vector<double> whole_parameters_;
  std::vector<double> cut_bytes_;
  std::vector<double> parameters_;
  std::vector<double> kept_; // bytes one microbatch in flight keeps
  std::vector<double> leaving_; // the part of them that offloading moves
  std::vector<double> logits_;
  std::vector<std::vector<double>> most_working_; // [first][length - 1]
  double tail_working_ = 0; // of the part of layer 0 behind the last layer
  double between_ = 0; // LayerRows::between_bytes
  std::vector<Tie> ties_;
};

/// Returns the share of a device's memory that tensors can fill before an allocation fails.
double usable_share(const DescribedModel& model, const Constants& constants);

} // namespace tessera::cost
