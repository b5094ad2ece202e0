#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

/// Properties of a user's module that are kept outside of it, because libtorch's modules have no
/// member for them. A mark lives as long as its module. Threads: any.
namespace tessera::nn {

/// Runs a replacement on the packed arguments of the module that it replaces;
/// returns that module's packed result.
using CallAdapter = std::function<c10::IValue(torch::nn::Module&, const c10::IValue& args)>;

/// Marks a module whose calls go through `Module<Impl>`.
void mark_interceptable(const std::shared_ptr<torch::nn::Module>& module);
bool is_interceptable(const torch::nn::Module& module);

/// Returns whether a holder of this library made the module, also one that is part of its parent
/// now.
bool has_holder(const torch::nn::Module& module);

/// Returns whether a module is a node of the model graph, which can live on a rank of its own: it
/// is interceptable, or one of libtorch's layers that needs no holder (operator_layer.h).
bool is_node(const torch::nn::Module& module);

/// Makes the module a part of its parent, whatever its holder is.
void fold_into_parent(const std::shared_ptr<torch::nn::Module>& module);

/// Makes later calls of `original` through its holder run `replacement`, which
/// takes over its manual partition. The replacement lives as long as its parent
/// holds it.
void set_replacement(
    const std::shared_ptr<torch::nn::Module>& original,
    const std::shared_ptr<torch::nn::Module>& replacement,
    CallAdapter adapter);

/// Makes later calls of `original` run itself again.
void end_replacement(const torch::nn::Module& original);

/// Returns what runs when `module` is called: its replacement, or the module itself.
/// Throws: UserError when the replacement is gone.
torch::nn::Module& replacement_of(torch::nn::Module& module);

/// Returns the adapter of a replacement; nullptr for other modules.
const CallAdapter* adapter_of(const torch::nn::Module& module);

/// The manual partition that was in scope (`tessera::partition`) when the
/// module was made; -1 for none.
int manual_partition(const torch::nn::Module& module);
void set_manual_partition(const torch::nn::Module& module, int partition);

/// Modules created inside the scope go to pp rank `index`; the innermost scope
/// wins. Takes effect with auto_partition false. In a forward that is divided by operations (the
/// key partition_mode) the operators that are called inside the scope go there, with auto_partition
/// true as well, and what must be together with them (operation_scopes.h) goes along.
/// Throws: ConfigError for a negative index; UserError in a step where it could have no effect: in
/// one of partition_mode "modules", and outside of the forward.
class PartitionScope {
 public:
  explicit PartitionScope(int index);
  ~PartitionScope();
  PartitionScope(const PartitionScope&) = delete;
  PartitionScope& operator=(const PartitionScope&) = delete;

 private:
  int previous_;
};

/// Operators that a model's forward calls in this scope, and in all others of this name in the
/// forwards of the model, run on one pipeline rank:
///
///     const tessera::colocation scope("head");
///
/// Without a name, those of this scope alone. Operators in a scope inside of another one are in
/// both. Backwards run where their forwards did. Takes effect with partition_mode "operations";
/// where there is one pipeline rank, or no step, everything is together already. Not collective.
/// Throws: ConfigError for an empty name; UserError in a step where it could have no effect: in
/// one of partition_mode "modules", and outside of the forward.
/// Source: the library's documentation of automated splitting (TensorFlow), colocation constraints.
class ColocationScope {
 public:
  ColocationScope();
  explicit ColocationScope(const std::string& name);
  ~ColocationScope();
  ColocationScope(const ColocationScope&) = delete;
  ColocationScope& operator=(const ColocationScope&) = delete;
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
  /// The module is a part of its parent whatever its holder is: see keep_parts_together.
  bool folded = false;
  /// Set by the innermost tensor_parallelism scope or by set_tensor_parallelism.
  bool tensor_parallel = false;
  std::map<std::string, c10::IValue> options;
  /// Whether the module was replaced, and by what.
  bool replaced = false;
  std::weak_ptr<torch::nn::Module> replacement;
  /// For a replacement: runs it on the arguments of the replaced module.
  CallAdapter adapter;
  std::optional<Recomputation> recomputation;
};

/// Calls `work` with the module's mark, or nullptr when it has none.
void with_mark(const torch::nn::Module& module, const std::function<void(Mark*)>& work);

/// The initial values of new marks on this thread.
struct MarkDefaults {
  int partition = -1;
  bool tensor_parallel = false;
  std::map<std::string, c10::IValue> options;
};
MarkDefaults& mark_defaults();

/// Remembers how large the object of a module is, where its class is known: in the holder that made
/// it, or the DistributedModel that was given it. libtorch keeps modules by their base class alone.
/// `bytes`: sizeof the module's class or of a class that it derives from. The first size that was
/// said counts. It is forgotten with the module. Not collective. Threads: any.
void remember_object_size(const std::shared_ptr<torch::nn::Module>& module, std::size_t bytes);

/// Returns 0 where the size is unknown. Not collective. Threads: any.
std::size_t object_size(const torch::nn::Module& module);

} // namespace tessera::nn
