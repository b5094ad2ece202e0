#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

/// What the library remembers of a user's module from outside, because libtorch's modules have no
/// place for it. A mark lives as long as its module. Threads: any.
namespace tessera::nn {

/// Runs a module on the packed arguments of another that it stands in for;
/// returns that one's packed result.
using CallAdapter = std::function<c10::IValue(torch::nn::Module&, const c10::IValue& args)>;

/// Marks a module as one whose calls go through `Module<Impl>`. The mark lives
/// as long as the module.
void mark_interceptable(const std::shared_ptr<torch::nn::Module>& module);
bool is_interceptable(const torch::nn::Module& module);

/// Whether a holder of this library made the module, also one that is part of its parent now.
bool has_holder(const torch::nn::Module& module);

/// Whether a module is a node of the model graph, which can live on a rank of its own: it is
/// interceptable, or one of libtorch's layers that needs no holder (operator_layer.h).
bool is_node(const torch::nn::Module& module);

/// From now on the module is part of its parent, whatever holds it.
void fold_into_parent(const std::shared_ptr<torch::nn::Module>& module);

/// From now on calls of `original` through its holder run `replacement`, which
/// takes over its manual partition. The replacement lives as long as its parent
/// holds it.
void set_replacement(
    const std::shared_ptr<torch::nn::Module>& original,
    const std::shared_ptr<torch::nn::Module>& replacement,
    CallAdapter adapter);

/// What runs when `module` is called: its replacement, or the module itself.
/// Throws: UserError when the replacement is gone.
torch::nn::Module& replacement_of(torch::nn::Module& module);

/// Of a replacement; nullptr for other modules.
const CallAdapter* adapter_of(const torch::nn::Module& module);

/// The manual partition that was in scope (`tessera::partition`) when the
/// module was made; -1 for none.
int manual_partition(const torch::nn::Module& module);
void set_manual_partition(const torch::nn::Module& module, int partition);

/// Modules created inside the scope go to pp rank `index`; the innermost scope
/// wins. Takes effect with auto_partition false.
class PartitionScope {
 public:
  explicit PartitionScope(int index);
  ~PartitionScope();
  PartitionScope(const PartitionScope&) = delete;
  PartitionScope& operator=(const PartitionScope&) = delete;

 private:
  int previous_;
};

/// How the calls of a module are recomputed in their backward (activation_checkpointing.h).
struct Recomputation {
  /// Of a Sequential, how many of its children make a region; 0: the module is one, whole.
  int group = 0;
  bool preserve_rng_state = true;
  std::string path; // of the module in its model, once that is partitioned
  /// Whether results of products are kept, so that they are not computed again.
  bool keeps_products = false;
};

struct Mark {
  std::weak_ptr<torch::nn::Module> module;
  int partition = -1;
  /// Part of its parent whatever its holder: see keep_parts_together.
  bool folded = false;
  /// As the innermost tensor_parallelism scope or set_tensor_parallelism said.
  bool tensor_parallel = false;
  std::map<std::string, c10::IValue> options;
  /// Of a module that was replaced: what runs in its place.
  bool replaced = false;
  std::weak_ptr<torch::nn::Module> replacement;
  /// Of a module that stands in for another: runs it on the other's arguments.
  CallAdapter adapter;
  std::optional<Recomputation> recomputation;
};

/// Calls `work` with the module's mark, or nullptr when it has none.
void with_mark(const torch::nn::Module& module, const std::function<void(Mark*)>& work);

/// What new marks of this thread begin with.
struct MarkDefaults {
  int partition = -1;
  bool tensor_parallel = false;
  std::map<std::string, c10::IValue> options;
};
MarkDefaults& mark_defaults();

} // namespace tessera::nn
