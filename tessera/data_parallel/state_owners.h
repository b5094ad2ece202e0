#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/process_group.h"
#include "tessera/data_parallel/parameter_set.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::data_parallel {

/// An owner for each of `elements` (sizes): the largest first, each to the rank that has the fewest
/// elements so far, to the lowest of several. A parameter is not divided, so the fullest rank has
/// at most one parameter more than the average.
/// `loads`: elements that each rank has already; those given out here are added. Not collective.
std::vector<int> balanced_owners(
    const std::vector<std::int64_t>& elements,
    std::vector<std::int64_t>& loads);

/// Who of a group of replicas keeps the optimizer's state of which parameter. The group's ranks
/// hold the same parameters, so each computes the same owners. An owner stays one for as long as
/// the parameter's state is shared out. Not collective. Threads: step thread only.
/// Source: Karakus et al. 2021, appendix H.1.
class StateOwners {
 public:
  /// `control`: a second group of the same ranks, for agreements.
  StateOwners(comm::ProcessGroup& group, comm::ProcessGroup& control, NamedTensors parameters);

  /// From now on the state of exactly the parameters of `shared` that are of this group is shared
  /// out. Those that need gradients are balanced among themselves.
  void share(const ParameterSet& shared);

  /// By parameter, as given: a rank in the group, or -1 for state that every rank keeps.
  const std::vector<int>& owners() const {
    return owners_;
  }
  const NamedTensors& parameters() const {
    return parameters_;
  }
  /// -1 also for a parameter of another group.
  int owner_of(const at::Tensor& parameter) const;
  /// Returns whether another rank keeps the parameter's state.
  bool is_elsewhere(const at::Tensor& parameter) const {
    const int owner = owner_of(parameter);
    return owner >= 0 && owner != group_.rank();
  }
  comm::ProcessGroup& group() const {
    return group_;
  }
  comm::ProcessGroup& control() const {
    return control_;
  }

 private:
  comm::ProcessGroup& group_;
  comm::ProcessGroup& control_;
  NamedTensors parameters_;
  std::map<const void*, int> index_;
  std::vector<int> owners_;
};

/// Gives every rank of the group the values that each tensor has on its owner. Small tensors travel
/// together, large ones as they lie.
/// Collective over `group`, which has the same tensors on all ranks. Threads: step thread only.
/// Cost: each value leaves its owner once for each other rank.
struct OwnedTensor {
  at::Tensor tensor;
  int owner = 0;
};
void send_values(comm::ProcessGroup& group, const std::vector<OwnedTensor>& tensors);

} // namespace tessera::data_parallel
