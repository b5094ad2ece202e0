#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/context/context.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/runtime/module_table.h"
#include "tessera/state/optimizer_state.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::state {

/// Converts between a rank's local (sharded) state and the full state that a single process would
/// have.
///
/// Local tensors have the names of the modules that run on this rank. Whole tensors have the names
/// of the modules that the script made, and the shapes they had there. A distributed module with
/// everything inside it is one unit: the shards of the TP_GROUP are assembled to full tensors,
/// which the state hooks of the module's registration then rename and reshape.
///
/// Every conversion takes one tensor for each parameter: its value, or one field of its optimizer
/// state. Threads: step thread only.
class StateLayout {
 public:
  /// Before the partition: all ranks still know all modules. Collective over
  /// the TP_GROUP. Throws: ConfigError when its ranks built different models.
  StateLayout(
      Context& context,
      const torch::nn::Module& root,
      const std::vector<nn::ReplacedModule>& replaced);

  /// After the partition, or anew after another one. `table` must outlive all other calls. Not
  /// collective.
  void place(const runtime::ModuleTable& table);

  struct Whole {
    std::string name;
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    bool parameter = true;
  };
  /// Names of all parameters and buffers of the model, whoever holds them. Not
  /// collective.
  std::set<std::string> whole_names() const;

  /// Part 0 holds what is not in distributed modules; every further part is one unit.
  int parts() const {
    return static_cast<int>(units_.size()) + 1;
  }
  /// The whole tensors from which this rank's part is made. Not collective.
  std::vector<Whole> wanted(int part) const;
  /// This rank's tensors of a part, cut from whole ones. A tensor of part 0 that is not given is
  /// left out; a unit that misses one is left out as a whole. Local tensors of this rank are
  /// accepted in the place of whole ones. Not collective. Throws: ShapeError.
  TensorMap to_local(int part, const TensorMap& whole) const;

  /// This rank's share of the replica's whole tensors: each of them is in the share of exactly one
  /// rank of the replica. Tensors of units are copies, the others are those of `local`.
  /// Collective over the replica.
  TensorMap whole_share(const TensorMap& local) const;

  /// This rank's share of the replica's optimizer state. Collective over the replica.
  /// Throws: CheckpointError when parameters that make one tensor of the script
  /// are in different groups.
  OptimizerState whole_share(const OptimizerState& local) const;
  /// Not collective.
  OptimizerState to_local(const OptimizerState& whole) const;

  /// Returns whether the gradient is averaged over the RDP_GROUP only. Not collective.
  bool is_scaled_batch(const std::string& local_name) const;
  /// Returns whether each rank of the TP_GROUP has a part of its own of it. Not collective.
  bool is_distributed(const std::string& local_name) const;
  /// Returns whether this rank owns anything of the distributed module at `path`. Not
  /// collective.
  bool holds_part_of(const std::string& path) const;
  /// Also true for the undivided tensors of a distributed module. Not collective.
  bool in_distributed_module(const std::string& local_name) const {
    return unit_of(local_name) != nullptr;
  }
  /// The parts of a parameter-shaped tensor that this rank counts in norms over the model: no other
  /// rank of the TP_GROUP counts them. Not collective.
  std::vector<at::Tensor> counted_once(const std::string& local_name, const at::Tensor& tensor)
      const;

 private:
  /// A tensor of a unit on one tp rank.
  struct Held {
    nn::Shard shard;
    bool distributed = false;
    bool scaled_batch = false;
    bool parameter = true;
  };
  struct Unit {
    std::string path;
    // Without a registration both are null, and whole names are those of the distributed module.
    std::shared_ptr<const nn::TpRule> rule;
    std::shared_ptr<torch::nn::Module> original;
    std::vector<Whole> whole; // names without the path
    /// By name without the path, then by tp rank; a rank that is missing holds nothing.
    std::map<std::string, std::map<int, Held>> held;
    std::set<std::string> here; // names this rank owns
    bool mine = false;
    bool spans_pipeline = false;
    /// whole name -> held names it is made of; filled when first asked for.
    mutable std::map<std::string, std::vector<std::string>> origins;
  };

  void add_unit(
      const std::string& path,
      const torch::nn::Module& module,
      const nn::ReplacedModule* replaced);
  void exchange();
  void fill_whole(Unit& unit) const;
  const Unit* unit_of(const std::string& local_name) const;
  const Held* held_here(const std::string& local_name) const;
  comm::ProcessGroup& group_of(const Unit& unit) const;
  int tp_rank() const {
    return context_.group(Group::kTP).rank();
  }
  std::map<std::string, at::Tensor> assemble(
      const Unit& unit,
      const std::vector<TensorMap>& by_rank) const;
  TensorMap to_original(const Unit& unit, const TensorMap& full) const;
  TensorMap to_distributed(const Unit& unit, const TensorMap& whole) const;
  const std::map<std::string, std::vector<std::string>>& origins(const Unit& unit) const;
  struct UnitState;
  UnitState gather_unit_state(const Unit& unit, const OptimizerState& local) const;
  TensorMap whole_field(const Unit& unit, const std::vector<TensorMap>& by_rank) const;
  std::optional<int>
  group_of_whole(const Unit& unit, const UnitState& state, const std::string& name) const;
  std::map<std::string, TensorMap> divided_fields(const Unit& unit, const OptimizerState& whole)
      const;
  void share_unit_state(const Unit& unit, const OptimizerState& local, OptimizerState& share) const;
  bool take_own_state(
      const Unit& unit,
      const OptimizerState& given,
      const std::map<std::string, int>& groups,
      OptimizerState& local) const;
  void take_unit_state(const Unit& unit, const OptimizerState& whole, OptimizerState& local) const;

  Context& context_;
  std::vector<Unit> units_;
  std::set<std::string> plain_names_;
  const runtime::ModuleTable* table_ = nullptr;
};

} // namespace tessera::state
