#pragma once

#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include <ATen/core/Tensor.h>

namespace tessera {

class Model;

/// A function of a model's parameters that runs where they live. Made by `over_parameters`; copies
/// are the same function.
class ParameterFunction {
 public:
  /// The term of one parameter, by its path in the model; an undefined tensor for one without.
  using Term = std::function<at::Tensor(const std::string& name, const at::Tensor& value)>;

  ParameterFunction(const Model& model, Term term, const std::string& type);

  /// Returns the sum of the terms over all parameters of the model, each once: as a rule a tensor
  /// of shape
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
template <typename Function>
ParameterFunction over_parameters(const Model& model, Function function) {
  return ParameterFunction(model, std::move(function), typeid(Function).name());
}

} // namespace tessera
