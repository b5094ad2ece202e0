#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/optimizer_state.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/runtime/module_table.h"
#include "tessera/train/session.h"

namespace tessera {

using TensorMap = std::map<std::string, at::Tensor>;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

namespace train {

/// Between what a rank holds and what a single process would hold.
///
/// A rank's tensors go by the names of the modules that run here ("local"). The
/// whole model's go by the names of the modules that the script made, and are
/// not divided ("whole"). A distributed module with all that is inside it is
/// one unit: its tensors are put together from the TP_GROUP's shards and then
/// renamed and laid out by the state hooks of its registration.
///
/// Every mapping works for one tensor a parameter: values, or any field of an
/// optimizer's state. Threads: step thread only.
class StateLayout {
 public:
  /// Before the partition: all ranks still know all modules. Collective over
  /// the TP_GROUP. Throws: ConfigError when its ranks built different models.
  StateLayout(const torch::nn::Module& root, const std::vector<nn::ReplacedModule>& replaced);

  /// After the partition. `table` outlives this. Not collective.
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

  /// Part 0: what is not in distributed modules. The others: one unit each.
  int parts() const {
    return static_cast<int>(units_.size()) + 1;
  }
  /// The whole tensors from which this rank's part is made. Not collective.
  std::vector<Whole> wanted(int part) const;
  /// This rank's tensors of a part from whole ones; those that are not given
  /// are left out, of a unit all. Also takes this rank's own local ones. Not
  /// collective. Throws: ShapeError.
  TensorMap to_local(int part, const TensorMap& whole) const;

  /// This rank's share of the replica's whole tensors: over the ranks of a
  /// replica each comes once. Copies of what is divided, `local` itself of the
  /// rest. Collective over the replica.
  TensorMap whole_share(const TensorMap& local) const;

  /// The same for an optimizer's state.
  /// Throws: CheckpointError when parameters that make one tensor of the script
  /// are in different groups.
  checkpoint::OptimizerState whole_share(const checkpoint::OptimizerState& local) const;
  /// Not collective.
  checkpoint::OptimizerState to_local(const checkpoint::OptimizerState& whole) const;

  /// Whether the gradient is averaged over the RDP_GROUP only. Not collective.
  bool is_scaled_batch(const std::string& local_name) const;
  /// Whether this rank holds a shard. Not collective.
  bool is_distributed(const std::string& local_name) const;
  /// Whether this rank owns anything of the distributed module at `path`. Not
  /// collective.
  bool holds_part_of(const std::string& path) const;
  /// Also true of what is not divided there. Not collective.
  bool in_distributed_module(const std::string& local_name) const {
    return unit_of(local_name) != nullptr;
  }
  /// The parts of a tensor of this shape that no other rank of the TP_GROUP
  /// counts, for norms over the model. Not collective.
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
    // Both empty: the names are those of the distributed module.
    std::shared_ptr<const nn::TpRule> rule;
    std::shared_ptr<torch::nn::Module> original;
    std::vector<Whole> whole; // names without the path
    /// By name without the path, then by tp rank; not there: holds nothing.
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
  std::map<std::string, at::Tensor> assemble(
      const Unit& unit,
      const std::vector<TensorMap>& by_rank) const;
  TensorMap to_original(const Unit& unit, const TensorMap& full) const;
  TensorMap to_distributed(const Unit& unit, const TensorMap& whole) const;
  const std::map<std::string, std::vector<std::string>>& origins(const Unit& unit) const;
  void share_unit_state(
      const Unit& unit,
      const checkpoint::OptimizerState& local,
      checkpoint::OptimizerState& share) const;
  bool take_own_state(
      const Unit& unit,
      const checkpoint::OptimizerState& given,
      const std::map<std::string, int>& groups,
      checkpoint::OptimizerState& local) const;
  void take_unit_state(
      const Unit& unit,
      const checkpoint::OptimizerState& whole,
      checkpoint::OptimizerState& local) const;

  std::vector<Unit> units_;
  std::set<std::string> plain_names_;
  const runtime::ModuleTable* table_ = nullptr;
};

} // namespace train
} // namespace tessera
