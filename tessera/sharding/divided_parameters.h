#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/process_group.h"
#include "tessera/sharding/parted_tensor.h"
#include "tessera/sharding/shard_nodes.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::sharding {

/// A parameter of which each rank of a shard group keeps 1 / d.
struct DividedParameter {
  std::string name;
  at::Tensor whole; // the script's handle, without memory (parted_tensor.h)
  at::Tensor part; // [per_rank]: this rank's elements, what an optimizer updates
  std::shared_ptr<Source> source;
  std::int64_t per_rank = 0;
};

/// The divided parameters of one model. Parts lie in memory that the ranks of the shard group on
/// one node share; those of other nodes come by a PartService. Threads: step thread only.
class DividedParameters {
 public:
  /// Gives a parameter the values that all ranks of the group have; it may have had no memory
  /// before.
  using Make = std::function<void(const std::string& name, const at::Tensor& parameter)>;

  /// How parameters become whole where the shard group is on several nodes.
  struct Gathering {
    ShardNodes nodes;
    comm::ProcessGroup& node; // the ranks of `group` on this node; `group` where it is all of them
    std::shared_ptr<PartService> service; // nullptr with one node
    bool hierarchical = true; // sdp_hierarchical_allgather
    std::int64_t most_elements = 0; // sdp_max_live_parameters
  };

  /// Makes and divides the parameters, one at a time, so that one is whole.
  /// Collective over `group`. Throws: ConfigError when ranks of a node share no memory, or a
  /// parameter shares its own with another tensor.
  DividedParameters(
      comm::ProcessGroup& group,
      const Gathering& gathering,
      const NamedTensors& parameters,
      const Make& make);

  const std::vector<DividedParameter>& list() const {
    return list_;
  }
  /// Returns the parameter of this handle, or nullptr. Not collective.
  const DividedParameter* find(const at::Tensor& whole) const;
  const DividedParameter* find(const std::string& name) const;

  /// Returns this rank's elements of a tensor of the parameter's shape, as a tensor of its own. Not
  /// collective.
  at::Tensor part_of(const DividedParameter& parameter, const at::Tensor& whole) const;
  /// Returns the whole of a tensor of which every rank has a part. Collective over the group.
  at::Tensor whole_of(const DividedParameter& parameter, const at::Tensor& part) const;

  /// Waits until every rank of the group is here and nobody reads, and forgets what was gathered:
  /// parts may be written then. Collective over the group.
  void before_writing();
  /// Waits until every rank of the group has written its parts. Collective over the group.
  void after_writing();
  /// Throws: UserError when a script has put other memory into a handle. Not collective.
  void check_handles() const;

  comm::ProcessGroup& group() const {
    return group_;
  }
  /// nullptr where the shard group is on one node.
  const std::shared_ptr<Gatherer>& gatherer() const {
    return gatherer_;
  }

 private:
  struct Memory;
  static Memory
  memory_for(comm::ProcessGroup& group, const Gathering& gathering, const NamedTensors& parameters);
  void make_gatherer(const Gathering& gathering, const Memory& memory);

  comm::ProcessGroup& group_;
  std::vector<DividedParameter> list_;
  std::shared_ptr<Gatherer> gatherer_;
};

/// Returns whether a parameter can be divided: dense, on the processor, floating-point, and the
/// only user of its memory. Not collective.
bool can_be_divided(const at::Tensor& parameter);

} // namespace tessera::sharding
