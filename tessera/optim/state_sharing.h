#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/context/context.h"
#include "tessera/data_parallel/state_owners.h"
#include "tessera/state/optimizer_state.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::model {
class ModelCore;
} // namespace tessera::model

namespace tessera::optim {

/// What shard_optimizer_state makes of an optimizer: each parameter's state, and its f32 master,
/// lives on one of the ranks that hold the parameter. Gradients reach that rank alone
/// (StateOwners); it updates the parameter, and the others are given the result. Off, every method
/// returns at once.
///
/// `models` are always those whose parameters the optimizer has.
/// Threads: step thread only.
/// Source: Karakus et al. 2021, appendix H.1. There whole buckets belong to a rank; here parameters
/// do, so that an owner stays one when buckets change.
class StateSharing {
 public:
  using Models = std::vector<model::ModelCore*>;

  StateSharing() = default;
  /// Of an optimizer that was made with `parameters`.
  explicit StateSharing(const std::vector<at::Tensor>& parameters);

  /// Tells models that are not told yet. Collective over the world if one is partitioned already.
  void join(const Models& models) const;
  /// Returns whether any state is shared out now. The same on all ranks of the world that the
  /// models have.
  bool in_use(const Models& models) const;
  /// Returns whether another rank updates the parameter. Not collective.
  bool is_elsewhere(const Models& models, const at::Tensor& parameter) const;

  /// Returns whether this rank counts all of the parameter's gradient in norms over the world, or
  /// nothing; nullopt where other rules decide which part. Not collective.
  std::optional<bool>
  counts_whole(const Context& context, const Models& models, const at::Tensor& parameter) const;

  /// Runs `update`, then gives every rank the owners' values of all parameters that may have
  /// changed: those that need gradients or have one. Collective over the DP_GROUP.
  /// Throws: what `update` throws; UserError on the ranks of the DP_GROUP where it did not.
  at::Tensor update(
      const Context& context,
      const Models& models,
      const std::function<at::Tensor()>& update) const;

  /// This rank's parameters of one model, each as its owner's optimizer updates it, and the state
  /// of all of them.
  struct Content {
    NamedTensors parameters;
    state::OptimizerState state;
  };
  /// Completes `own`, in which this rank's parameters are all named, with what other ranks own: on
  /// every rank, or with `first_only` on those of rdp_rank 0. Collective over the DP_GROUP.
  void gather(const Context& context, const model::ModelCore& of, bool first_only, Content& own)
      const;
  /// Leaves in `own` what this rank is the one to write, of what all ranks of its DP_GROUP hold.
  /// Not collective.
  void keep_own(const Context& context, const model::ModelCore& of, Content& own) const;

 private:
  std::shared_ptr<const data_parallel::ParameterSet> parameters_; // nullptr: off
};

} // namespace tessera::optim
