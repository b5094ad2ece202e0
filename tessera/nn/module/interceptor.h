#pragma once

#include <cstdint>
#include <functional>
#include <limits>
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

/// Registers an invoker under its key; called during static initialisation
/// by every instantiation of Module<Impl>::operator().
CallKey register_invoker(const std::string& name, Invoker invoker);

/// Throws: InternalError when no such call was instantiated in this program;
/// PlanError when two classes of one name were.
Invoker find_invoker(std::uint64_t hash);

/// Decides what a call of an interceptable module does on this thread: the
/// runtime inside a step, the tracer while tracing. Without one calls are plain.
class Interceptor {
 public:
  virtual ~Interceptor() = default;

  /// Returns whether `call` wants this call; false is the fast path of a local call.
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

  /// For a Sequential at child `first`: the end of the run of children that are on this rank, or
  /// `first` when that one is not. Default: all are.
  virtual int local_end(const torch::nn::Module& sequential, int first) {
    (void)sequential;
    (void)first;
    return std::numeric_limits<int>::max();
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

} // namespace tessera::nn
