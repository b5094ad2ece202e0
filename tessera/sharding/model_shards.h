#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/context/context.h"
#include "tessera/sharding/divided_parameters.h"
#include "tessera/sharding/shard_reducer.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::sharding {

/// Sharded data parallelism of one model (MiCS, ZeRO-3): each parameter of at least
/// `sdp_param_persistence_threshold` elements is divided over a shard group, and with it its
/// gradient, its master and its optimizer state. Shard groups hold the same.
///
/// Any operator that reads a parameter, in a forward or in a backward, finds it whole for its time
/// (parted_tensor.h).
/// Threads: step thread only.
/// Source: Zhang et al. 2022 (MiCS); Rajbhandari et al. 2020 (ZeRO); the library's documentation,
/// sharded data parallelism.
class ModelShards {
 public:
  /// Whether the gradient of this parameter is averaged over the RDP_GROUP, not the DP_GROUP.
  using IsScaled = std::function<bool(const std::string& name)>;

  /// Makes and divides `parameters`. `number`: of the model in this process, which names its
  /// groups. Collective over the data-parallel ranks. Throws: as DividedParameters.
  ModelShards(
      Context& context,
      const NamedTensors& parameters,
      const DividedParameters::Make& make,
      const IsScaled& is_scaled,
      int number);

  /// Returns whether this parameter is to be divided under `config`; a large one that cannot be is
  /// named in a warning. Not collective.
  static bool divides(const Config& config, const std::string& name, const at::Tensor& parameter);

  const DividedParameters& parameters() const {
    return *parameters_;
  }
  /// Returns the reducer of what the DP_GROUP averages, and with tensor parallelism a second one of
  /// what the RDP_GROUP does.
  const std::vector<std::unique_ptr<ShardReducer>>& reducers() const {
    return reducers_;
  }
  /// Returns the ranks that hold one copy of the model together.
  comm::ProcessGroup& group() const {
    return parameters_->group();
  }

  /// Returns the tensor that an optimizer updates in the place of a divided parameter; any other
  /// tensor is returned as it is. Not collective.
  at::Tensor updated_part(const at::Tensor& parameter) const;
  /// Writes this rank's part of a whole value. Returns false, and does nothing, for a parameter
  /// that is not divided. Not collective: between `before_writing` and `after_writing`.
  bool assign(const at::Tensor& parameter, const at::Tensor& whole) const;
  /// Collective over the shard group.
  void before_writing() {
    parameters_->before_writing();
  }
  /// Does the same as `before_writing`, after a collective of the shard group behind which nobody
  /// reads: it does nothing where nothing was gathered.
  void before_update() {
    if (parameters_->gatherer() != nullptr) {
      parameters_->before_writing();
    }
  }
  /// Collective over the shard group.
  void after_writing() {
    parameters_->after_writing();
  }

  /// Not collective. Throws: UserError when a handle was given other memory.
  void begin_step(int microbatches);
  /// Not collective.
  void end_microbatch();
  /// Calls ShardReducer::settle of all reducers. Not collective.
  void settle();

 private:
  comm::ProcessGroup& new_group(const std::string& name, const std::vector<int>& ranks);
  void add_reducer(
      const Context& context,
      const ShardReducer::Groups& groups,
      const std::function<bool(const std::string& name)>& takes,
      double scale);

  comm::WorldPtr world_; // keeps the groups usable until their users are gone
  std::vector<comm::ProcessGroupPtr> groups_;
  std::unique_ptr<DividedParameters> parameters_;
  std::vector<std::unique_ptr<ShardReducer>> reducers_;
};

} // namespace tessera::sharding
