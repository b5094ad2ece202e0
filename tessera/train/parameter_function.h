#pragma once

#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tessera/runtime/module_table.h"

namespace tessera {

namespace train {

class ModelCore;

/// What a script adds up over parameters: the term of one of them, by its path in the model; an
/// undefined tensor for a parameter that has none.
using ParameterTerm = std::function<at::Tensor(const std::string& name, const at::Tensor& value)>;

/// The functions of parameters that a model's ranks know, and the sums of their terms over the
/// ranks of a pipeline. Each pp rank has a module without parameters in the module table; a call of
/// it sums the terms of what that rank owns, and travels as every call of a module does.
/// Threads: `add` and `remove` step thread only; `sum` also in tasks.
class ParameterFunctions {
 public:
  explicit ParameterFunctions(ModelCore& core);
  ~ParameterFunctions();
  ParameterFunctions(const ParameterFunctions&) = delete;
  ParameterFunctions& operator=(const ParameterFunctions&) = delete;

  /// After the partition: one call target for each pp rank.
  void place(runtime::ModuleTable& table, int pp_size);

  /// The function's number: the lowest that is free, so equal on all ranks that make and drop the
  /// same functions in the same order. `type` tells functions of one number apart.
  int add(ParameterTerm term, const std::string& type);
  void remove(int number);

  /// Over all ranks of the pipeline, in their order.
  at::Tensor sum(int number) const;
  /// Over the parameters that this rank owns; undefined when none has a term.
  at::Tensor local_sum(int number, std::int64_t type) const;

 private:
  struct Target;
  struct Function {
    ParameterTerm term;
    std::int64_t type = 0;
  };

  at::Tensor traced_sum(const Function& function) const;

  ModelCore& core_;
  std::vector<Function> functions_;
  std::vector<std::shared_ptr<Target>> targets_; // by pp rank; empty before the partition
};

} // namespace train

/// A function of a model's parameters that runs where they live. Made by `over_parameters`; copies
/// are the same function.
class ParameterFunction {
 public:
  ParameterFunction(
      const std::shared_ptr<train::ModelCore>& core,
      train::ParameterTerm term,
      const std::string& type);

  /// The sum of the terms over all parameters of the model, each once: as a rule a tensor of shape
  /// [], zero when no parameter has a term. It has gradients as any result of a module has, and
  /// none with grad mode off.
  ///
  /// Inside a step only, unless the whole model is on this rank. In the tracing pass of the first
  /// step the function sees zeros of the parameters' shapes. Not collective. Threads: step function
  /// and modules.
  /// Throws: UserError outside a step, when the other ranks did not make the same function, and for
  /// a parameter that tensor parallelism divides: a rank has a part of it only.
  at::Tensor operator()() const;

 private:
  struct Registered;
  std::shared_ptr<const Registered> registered_;
};

/// Makes a function of the parameters of a distributed model, for what a script would compute over
/// `named_parameters()`: regularisation, norms, statistics. After the partition a rank holds its
/// own parameters only, so the function goes to them and the sum of its terms comes back:
///
///     auto penalty = tessera::over_parameters(model, [](const std::string& name, const at::Tensor&
///     p) {
///       return name.ends_with("bias") ? at::Tensor() : 1e-4 * p.pow(2).sum();
///     });
///     auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
///       auto loss = torch::mse_loss(model(x), y) + penalty();
///       model.backward(loss);
///       return loss;
///     });
///
/// Every rank makes it, outside the step and in the same order as its other functions. The function
/// may be called on several ranks, so what it captures must be the same there.
/// Not collective. Threads: step thread only.
template <typename Model, typename Function>
ParameterFunction over_parameters(const Model& model, Function function) {
  return ParameterFunction(model.core(), std::move(function), typeid(Function).name());
}

} // namespace tessera
