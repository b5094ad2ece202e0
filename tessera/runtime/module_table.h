#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::runtime {

/// The interceptable modules of a model with the pp rank that owns each; ids
/// are positions in registration order and equal on every rank.
/// Threads: read from any thread after construction.
class ModuleTable {
 public:
  /// `partition` holds a pp rank for the path of every interceptable module.
  /// Throws: PlanError naming the path that is missing, or a parameter whose
  /// holders are on two ranks.
  ModuleTable(
      std::shared_ptr<torch::nn::Module> root,
      const std::map<std::string, int>& partition,
      int pp_rank);

  /// Makes a module callable on `owner` that the model does not hold; every rank adds the same in
  /// the same order. `module` lives as long as the table is used.
  void add(const std::string& path, torch::nn::Module& module, int owner);

  struct Entry {
    std::string path;
    torch::nn::Module* module;
    int owner; // pp rank
  };
  const std::vector<Entry>& entries() const {
    return entries_;
  }
  int pp_rank() const {
    return pp_rank_;
  }
  torch::nn::Module& root() const {
    return *root_;
  }

  /// -1 for a module that is not in the table.
  int id_of(const torch::nn::Module& module) const;

  /// "layers.3", or "the model" for the root.
  std::string name_of(int id) const;

  /// Returns the owner of each child of a Sequential by position.
  int owner_of_child(const torch::nn::Module& sequential, int child) const;

  /// Return the parameters (buffers) that live on this rank, each once, by their first path: those
  /// of the modules that this rank owns and of the modules folded into them.
  std::vector<std::pair<std::string, torch::Tensor>> local_parameters() const;
  std::vector<std::pair<std::string, torch::Tensor>> local_buffers() const;

  /// Returns whether any rank of the pipeline has a buffer.
  bool has_buffers() const {
    return !buffers_.empty();
  }

  /// Returns the first paths of all parameters and buffers of the model.
  std::vector<std::string> tensor_names() const;

  /// Returns whether a parameter or buffer has this name (any of its paths).
  bool has_tensor(const std::string& name) const {
    return tensor_owner_.contains(name);
  }

  /// Returns the pp rank that owns the parameter or buffer of this name.
  int owner_of_tensor(const std::string& name) const;

  /// Returns the parameter or buffer of this name (any of its paths).
  /// Throws: InternalError when there is none.
  const torch::Tensor& tensor(const std::string& name) const;

  /// Frees the parameters and buffers that other ranks own; their handles keep shape and dtype, so
  /// an optimizer made before still works, and refuse what asks for numbers (nn/remote_tensor.h).
  /// `pp_ranks` holds the global rank of each pp rank.
  void drop_remote_tensors(const std::vector<int>& pp_ranks);
  /// After a backward: nn::show_remote_gradient of every parameter that another rank owns.
  void show_remote_gradients() const;

 private:
  void visit(
      const std::shared_ptr<torch::nn::Module>& module,
      const std::string& path,
      int owner,
      const std::map<std::string, int>& partition);

  struct Held {
    std::string name;
    torch::Tensor tensor;
    int owner;
    const torch::nn::Module* module;
  };
  void hold(std::vector<Held>& list, Held held);

  std::shared_ptr<torch::nn::Module> root_;
  int pp_rank_;
  std::vector<Entry> entries_;
  std::unordered_map<const torch::nn::Module*, int> ids_;
  std::unordered_map<const torch::nn::Module*, std::vector<int>> child_owners_;
  std::vector<Held> parameters_;
  std::vector<Held> buffers_;
  std::unordered_map<std::string, int> tensor_owner_;
  std::unordered_map<std::string, torch::Tensor> tensors_; // by every name
  std::unordered_map<const void*, Held> first_held_; // by tensor
};

} // namespace tessera::runtime
