// LAMB and NovoGrad in one process, number by number in f64; over ranks: tests/mpi/optim.
#include <cmath>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/optim/fused.h"

namespace tessera::optim {
namespace {

using Numbers = std::vector<double>;

double norm(const Numbers& numbers) {
  double sum = 0;
  for (const double number : numbers) {
    sum += number * number;
  }
  return std::sqrt(sum);
}

/// Two parameters whose gradients in step t are given numbers; the second is zero at first.
struct Case {
  std::vector<Numbers> parameters = {{0.5, -1.5, 2.0}, {0.0, 0.0}};
  static std::vector<Numbers> gradients(int step) {
    return {{0.3 * step, -0.7, 1.1 / step}, {2.0, -0.4 * step}};
  }
};

/// What the optimizer makes of them in three steps.
template <typename Optimizer, typename Options>
std::vector<Numbers> trained(const Options& options) {
  std::vector<torch::Tensor> tensors;
  for (const Numbers& numbers : Case().parameters) {
    tensors.push_back(torch::tensor(numbers, torch::kDouble).requires_grad_());
  }
  Optimizer optimizer(tensors, options);
  for (int step = 1; step <= 3; ++step) {
    const auto gradients = Case::gradients(step);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].mutable_grad() = torch::tensor(gradients[i], torch::kDouble);
    }
    optimizer.step();
  }
  std::vector<Numbers> result;
  for (const torch::Tensor& tensor : tensors) {
    const auto* data = tensor.data_ptr<double>();
    result.emplace_back(data, data + tensor.numel());
  }
  return result;
}

void expect_numbers(const std::vector<Numbers>& got, const std::vector<Numbers>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (std::size_t k = 0; k < wanted[i].size(); ++k) {
      EXPECT_NEAR(got[i][k], wanted[i][k], 1e-6) << i << ", " << k;
    }
  }
}

std::vector<Numbers> lamb_by_hand(const LambOptions& options) {
  const auto [b1, b2] = options.betas();
  Case now;
  std::vector<Numbers> m = {{0, 0, 0}, {0, 0}};
  std::vector<Numbers> v = m;
  for (int t = 1; t <= 3; ++t) {
    const auto g = Case::gradients(t);
    const double all = std::hypot(norm(g[0]), norm(g[1]));
    const double most = options.max_grad_norm();
    const double clip = most > 0 && all > most ? most / all : 1;
    for (std::size_t i = 0; i < g.size(); ++i) {
      Numbers& p = now.parameters[i];
      Numbers u(p.size());
      for (std::size_t k = 0; k < p.size(); ++k) {
        const double gradient = g[i][k] * clip;
        m[i][k] = b1 * m[i][k] + (options.grad_averaging() ? 1 - b1 : 1) * gradient;
        v[i][k] = b2 * v[i][k] + (1 - b2) * gradient * gradient;
        const double mean = options.bias_correction() ? m[i][k] / (1 - std::pow(b1, t)) : m[i][k];
        const double square = options.bias_correction() ? v[i][k] / (1 - std::pow(b2, t)) : v[i][k];
        u[k] = mean / (std::sqrt(square) + options.eps()) + options.weight_decay() * p[k];
      }
      const bool adapts = options.weight_decay() != 0 || options.use_nvlamb();
      const double ratio = adapts && norm(p) > 0 && norm(u) > 0 ? norm(p) / norm(u) : 1;
      for (std::size_t k = 0; k < p.size(); ++k) {
        p[k] -= options.lr() * ratio * u[k];
      }
    }
  }
  return now.parameters;
}

TEST(Lamb, IsItsFormula) {
  for (const LambOptions& options :
       {LambOptions(),
        LambOptions(0.1).weight_decay(0),
        LambOptions(0.1).weight_decay(0).use_nvlamb(true),
        LambOptions(0.1).max_grad_norm(0),
        LambOptions(0.1).betas({0.8, 0.95}).eps(1e-3).bias_correction(false),
        LambOptions(0.1).grad_averaging(false).weight_decay(0.3)}) {
    expect_numbers(trained<Lamb>(options), lamb_by_hand(options));
  }
}

std::vector<Numbers> novograd_by_hand(const NovoGradOptions& options) {
  const auto [b1, b2] = options.betas();
  Case now;
  std::vector<Numbers> m = {{0, 0, 0}, {0, 0}};
  Numbers v = {0, 0}; // of squares
  for (int t = 1; t <= 3; ++t) {
    const auto g = Case::gradients(t);
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double square = norm(g[i]) * norm(g[i]);
      v[i] = t == 1 && !options.init_zero() ? square : b2 * v[i] + (1 - b2) * square;
      const double corrected = options.bias_correction() ? v[i] / (1 - std::pow(b2, t)) : v[i];
      const double length = std::sqrt(corrected) + options.eps();
      const double part = options.grad_averaging() ? 1 - b1 : 1;
      const double first = options.bias_correction() ? 1 - std::pow(b1, t) : 1;
      for (std::size_t k = 0; k < g[i].size(); ++k) {
        double& p = now.parameters[i][k];
        const double decay = options.weight_decay() * p;
        if (options.reg_inside_moment()) {
          m[i][k] = b1 * m[i][k] + part * (g[i][k] / length + decay);
          p -= options.lr() * m[i][k] / first;
        } else {
          m[i][k] = b1 * m[i][k] + part * g[i][k];
          p -= options.lr() * (m[i][k] / first / length + decay);
        }
      }
    }
  }
  return now.parameters;
}

TEST(NovoGrad, IsItsFormula) {
  for (const NovoGradOptions& options :
       {NovoGradOptions(0.1),
        NovoGradOptions(0.1).weight_decay(0.3),
        NovoGradOptions(0.1).weight_decay(0.3).reg_inside_moment(true),
        NovoGradOptions(0.1).betas({0.95, 0.98}).grad_averaging(false).bias_correction(false),
        NovoGradOptions(0.1).init_zero(true).eps(1e-3)}) {
    expect_numbers(trained<NovoGrad>(options), novograd_by_hand(options));
  }
}

TEST(Lamb, HasTheDocumentedDefaults) {
  const LambOptions options;
  EXPECT_EQ(options.lr(), 1e-3);
  EXPECT_EQ(options.betas(), std::make_tuple(0.9, 0.999));
  EXPECT_EQ(options.eps(), 1e-6);
  EXPECT_EQ(options.weight_decay(), 0.01);
  EXPECT_EQ(options.max_grad_norm(), 1.0);
}

TEST(Lamb, RefusesASparseGradient) {
  torch::Tensor table = torch::ones({4, 2}, torch::requires_grad());
  Lamb optimizer({table});
  table.mutable_grad() =
      torch::sparse_coo_tensor(torch::tensor({{1}}), torch::ones({1, 2}), torch::IntArrayRef{4, 2});
  try {
    optimizer.step();
    FAIL() << "a sparse gradient was taken";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("[4, 2] is sparse"));
  }
}

} // namespace
} // namespace tessera::optim
