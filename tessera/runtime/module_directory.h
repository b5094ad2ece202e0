#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/runtime/module_table.h"

namespace tessera::runtime {

/// The interceptable modules of all partitioned models of this process, under consecutive ids. Ids
/// are equal on every rank because all ranks add and remove the same models in the same order.
/// Threads: add and remove on the step thread between steps; reading is safe
/// from any thread during a step.
class ModuleDirectory {
 public:
  using Entry = ModuleTable::Entry;

  explicit ModuleDirectory(int pp_rank) : pp_rank_(pp_rank) {}

  /// Appends the modules of a model. `label` names the model in messages and
  /// events once there are several. `table` must stay alive until `remove`.
  void add(const ModuleTable& table, std::string label);
  /// Removes a model; its ids are never used again. Does nothing for a table that was not added.
  void remove(const ModuleTable& table);

  /// Adds a model that is not partitioned yet, and so whole on every rank. A call of its modules in
  /// a step would be a plain call, and its gradients would stay on one rank. `refuse_waiting`
  /// refuses such calls until `admit_waiting`.
  void refuse_waiting(const torch::nn::Module& root, const std::string& label);
  void admit_waiting() {
    waiting_.clear();
  }
  /// Throws: UserError for a module of a model that waits, with what to do.
  void check_not_waiting(const torch::nn::Module& module) const {
    if (!waiting_.empty()) {
      refuse(module);
    }
  }

  int pp_rank() const {
    return pp_rank_;
  }
  /// One entry for each id; `module` is nullptr after its model was removed.
  const std::vector<Entry>& entries() const {
    return entries_;
  }
  /// -1 for a module of no model in the directory.
  int id_of(const torch::nn::Module& module) const;

  /// "layers.3", or "the model" for a root. With several models the name begins
  /// with the model's label: "Generator: layers.3", "the model Generator".
  std::string name_of(int id) const;

  /// Returns the table of the model that a module of the directory belongs to.
  const ModuleTable& table_of(int id) const;

  /// The parameters and buffers of all models that this rank owns.
  using Named = std::vector<std::pair<std::string, torch::Tensor>>;
  Named local_parameters() const {
    return gather(&ModuleTable::local_parameters);
  }
  Named local_buffers() const {
    return gather(&ModuleTable::local_buffers);
  }
  /// Returns whether any rank of the pipeline has a buffer.
  bool has_buffers() const;

  /// Returns a number that rises with every model that is added or removed.
  int revision() const {
    return revision_;
  }

  /// Returns the owner of each child of a Sequential by position.
  int owner_of_child(const torch::nn::Module& sequential, int child) const;

 private:
  struct Model {
    const ModuleTable* table; // nullptr after `remove`
    std::string label;
    int end; // one past its last id
  };
  Named gather(Named (ModuleTable::*list)() const) const;
  const Model& model_of(int id) const;
  void refuse(const torch::nn::Module& module) const;

  int pp_rank_;
  int live_ = 0; // models that are not removed
  int revision_ = 0;
  std::vector<Model> models_;
  std::vector<Entry> entries_;
  std::unordered_map<const torch::nn::Module*, int> ids_;
  std::unordered_map<const torch::nn::Module*, std::string> waiting_; // label of its model
};

} // namespace tessera::runtime
