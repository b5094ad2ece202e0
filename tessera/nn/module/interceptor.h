#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "tessera/nn/module/script_class.h"

namespace tessera::nn {

/// Runs a module of one static type on packed arguments: (module, args tuple,
/// first and last child for ranges of a Sequential, else -1) -> packed result.
using Invoker = c10::IValue (*)(torch::nn::Module&, const c10::IValue& args, int, int);

/// Names an instantiation of a call, equal on every rank of one program: the
/// module's class and the types of the arguments.
struct CallKey {
  std::string name;
  std::uint64_t hash = 0; // of name; what travels in messages
};

/// Makes an invoker known under its key; called during static initialisation
/// by every instantiation of Module<Impl>::operator().
CallKey register_invoker(const std::string& name, Invoker invoker);

/// Throws: InternalError when no such call was instantiated in this program;
/// PlanError when two classes of one name were.
Invoker find_invoker(std::uint64_t hash);

/// Who decides what a call of an interceptable module does on this thread: the
/// runtime inside a step, the tracer while tracing. None: calls are plain.
class Interceptor {
 public:
  virtual ~Interceptor() = default;

  /// Whether `call` wants this call; false is the fast path of a local call.
  virtual bool wants(const torch::nn::Module& module) = 0;

  /// Children [first, last) of a Sequential, or -1, -1 for a whole module.
  virtual c10::IValue call(
      torch::nn::Module& module,
      const CallKey& key,
      const c10::IValue& args,
      int first,
      int last) = 0;

  /// For a Sequential at child `first`: the end of the longest run of children
  /// that one call may execute (all on one rank). Default: one child.
  virtual int range_end(const torch::nn::Module& sequential, int first) {
    (void)sequential;
    return first + 1;
  }

  /// A parameter or buffer of this rank, by its name in the model that `module` belongs to: what
  /// an operator call of another rank names. Default: an InternalError.
  virtual at::Tensor tensor_named(const torch::nn::Module& module, const std::string& name);
};

/// The interceptor of this thread, or nullptr.
Interceptor* current_interceptor();

/// Sets this thread's interceptor for a scope.
class InterceptorScope {
 public:
  explicit InterceptorScope(Interceptor* interceptor);
  ~InterceptorScope();
  InterceptorScope(const InterceptorScope&) = delete;
  InterceptorScope& operator=(const InterceptorScope&) = delete;

 private:
  Interceptor* previous_;
};

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

/// Runs a module on the packed arguments of another that it stands in for;
/// returns that one's packed result.
using CallAdapter = std::function<c10::IValue(torch::nn::Module&, const c10::IValue& args)>;

/// From now on calls of `original` through its holder run `replacement`, which
/// takes over its manual partition. The replacement lives as long as its parent
/// holds it.
void set_stand_in(
    const std::shared_ptr<torch::nn::Module>& original,
    const std::shared_ptr<torch::nn::Module>& replacement,
    CallAdapter adapter);

/// What runs when `module` is called: its replacement, or the module itself.
/// Throws: UserError when the replacement is gone.
torch::nn::Module& stand_in(torch::nn::Module& module);

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

} // namespace tessera::nn
