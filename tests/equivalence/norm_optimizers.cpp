#include "tests/equivalence/norm_optimizers.h"

#include <cmath>
#include <map>
#include <utility>

namespace tessera::equivalence {

namespace {

using torch::Tensor;

double length_of(const Tensor& tensor) {
  return tensor.to(torch::kDouble).norm().item<double>();
}

/// What both keep of a parameter.
struct Kept {
  int steps = 0;
  Tensor first;
  Tensor second;
  double squared_norm = 0;
};

/// An optimizer whose update of one parameter is a function.
template <typename Options>
class Plain : public torch::optim::Optimizer {
 public:
  Plain(Groups groups, const Options& options)
      : Optimizer(std::move(groups), std::make_unique<Options>(options)) {}

  Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK(closure == nullptr);
    const torch::NoGradGuard no_grad;
    begin();
    for (auto& group : param_groups_) {
      const auto& options = static_cast<const Options&>(group.options());
      for (Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) {
          Kept& kept = kept_[parameter.unsafeGetTensorImpl()];
          if (kept.steps++ == 0) {
            kept.first = torch::zeros_like(parameter);
            kept.second = torch::zeros_like(parameter);
          }
          update(parameter, options, kept);
        }
      }
    }
    return {};
  }

 protected:
  virtual void begin() {}
  virtual void update(Tensor& parameter, const Options& options, Kept& kept) = 0;

 private:
  std::map<const void*, Kept> kept_;
};

/// You et al. 2020, algorithm 2, with gradients clipped to the first group's max_grad_norm.
class PlainLamb : public Plain<optim::LambOptions> {
 public:
  using Plain::Plain;

 protected:
  void begin() override {
    double squares = 0;
    for (const auto& group : param_groups_) {
      for (const Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) {
          squares += std::pow(length_of(parameter.grad()), 2);
        }
      }
    }
    const double most =
        static_cast<const optim::LambOptions&>(param_groups_.front().options()).max_grad_norm();
    const double norm = std::sqrt(squares);
    clip_ = most > 0 && norm > most ? most / norm : 1;
  }

  void update(Tensor& parameter, const optim::LambOptions& options, Kept& kept) override {
    const auto [beta1, beta2] = options.betas();
    const Tensor gradient = parameter.grad() * clip_;
    kept.first = beta1 * kept.first + (1 - beta1) * gradient;
    kept.second = beta2 * kept.second + (1 - beta2) * gradient.square();
    const Tensor m = kept.first / (1 - std::pow(beta1, kept.steps));
    const Tensor v = kept.second / (1 - std::pow(beta2, kept.steps));
    const Tensor direction = m / (v.sqrt() + options.eps()) + options.weight_decay() * parameter;
    const double weight = length_of(parameter);
    const double length = length_of(direction);
    const bool adapts = options.weight_decay() != 0 && weight > 0 && length > 0;
    parameter.sub_(direction * (options.lr() * (adapts ? weight / length : 1)));
  }

 private:
  double clip_ = 1;
};

/// Ginsburg et al. 2019, with the corrections of Adam.
class PlainNovoGrad : public Plain<optim::NovoGradOptions> {
 public:
  using Plain::Plain;

 protected:
  void update(Tensor& parameter, const optim::NovoGradOptions& options, Kept& kept) override {
    const auto [beta1, beta2] = options.betas();
    const double square = std::pow(length_of(parameter.grad()), 2);
    kept.squared_norm = kept.steps == 1 ? square : beta2 * kept.squared_norm + (1 - beta2) * square;
    kept.first = beta1 * kept.first + (1 - beta1) * parameter.grad();
    const Tensor m = kept.first / (1 - std::pow(beta1, kept.steps));
    const double v = kept.squared_norm / (1 - std::pow(beta2, kept.steps));
    const Tensor direction = m / (std::sqrt(v) + options.eps());
    parameter.sub_((direction + options.weight_decay() * parameter) * options.lr());
  }
};

} // namespace

std::unique_ptr<torch::optim::Optimizer> plain_lamb(
    Groups groups,
    const optim::LambOptions& first) {
  return std::make_unique<PlainLamb>(std::move(groups), first);
}

std::unique_ptr<torch::optim::Optimizer> plain_novograd(
    Groups groups,
    const optim::NovoGradOptions& first) {
  return std::make_unique<PlainNovoGrad>(std::move(groups), first);
}

} // namespace tessera::equivalence
