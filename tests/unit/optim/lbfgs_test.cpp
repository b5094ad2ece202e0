// LBFGS in one process beside torch's own; over ranks: tests/mpi/optim.
#include "tessera/optim/lbfgs.h"

#include <cmath>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A curved valley in several dimensions: line searches overshoot and zoom.
struct Valley {
  Tensors parameters = {
      torch::tensor({-1.2, 1.0, 0.3}, at::kDouble).requires_grad_(),
      torch::tensor({{-0.5}, {2.0}}, at::kDouble).requires_grad_(),
      torch::zeros({3}, at::kDouble).requires_grad_()}; // without any gradient
  int evaluations = 0;

  at::Tensor evaluate() {
    ++evaluations;
    for (at::Tensor& parameter : parameters) {
      parameter.mutable_grad() = at::Tensor();
    }
    const at::Tensor x = torch::cat({parameters[0], parameters[1].view({-1})});
    const at::Tensor head = x.narrow(0, 0, 4);
    const at::Tensor loss =
        (100 * (x.narrow(0, 1, 4) - head.pow(2)).pow(2) + (1 - head).pow(2)).sum();
    loss.backward();
    return loss;
  }
};

std::vector<torch::optim::LBFGSOptions> many_options() {
  using Options = torch::optim::LBFGSOptions;
  const std::string search = "strong_wolfe";
  return {
      Options(1e-3),
      Options(1e-3).max_iter(7).history_size(2),
      Options(1).line_search_fn(search),
      Options(0.5).line_search_fn(search).max_iter(6).history_size(3),
      Options(3).line_search_fn(search).max_iter(10).max_eval(6),
      Options(1).line_search_fn(search).tolerance_grad(5).tolerance_change(1e-2)};
}

TEST(Lbfgs, IsThatOfTorch) {
  int number = 0;
  for (const auto& options : many_options()) {
    Valley theirs;
    Valley ours;
    torch::optim::LBFGS reference(theirs.parameters, options);
    LBFGS optimizer(ours.parameters, options);
    optimizer.compute_over(WholeModel::of_one_process());
    for (int step = 0; step < 8; ++step) {
      const at::Tensor wanted = reference.step([&] { return theirs.evaluate(); });
      const at::Tensor loss = optimizer.step([&] { return ours.evaluate(); });
      const std::string what = str("options ", number, ", step ", step);
      EXPECT_TRUE(torch::allclose(loss, wanted, 1e-7, 1e-9)) << what << ": " << loss << wanted;
      EXPECT_EQ(ours.evaluations, theirs.evaluations) << what;
      for (std::size_t i = 0; i < ours.parameters.size(); ++i) {
        EXPECT_TRUE(torch::allclose(ours.parameters[i], theirs.parameters[i], 1e-6, 1e-8))
            << what << ", parameter " << i;
      }
    }
    EXPECT_LT(ours.evaluate().item<double>(), 300) << number; // it began at 417
    ++number;
  }
}

TEST(Lbfgs, AnErrorInTheClosureLeavesTheStateAsItWas) {
  Valley valley;
  LBFGS optimizer(valley.parameters, torch::optim::LBFGSOptions(1e-3).max_iter(5));
  optimizer.compute_over(WholeModel::of_one_process());
  optimizer.step([&] { return valley.evaluate(); });
  const auto iterations = [&] {
    return static_cast<const LBFGSParamState&>(*optimizer.state().begin()->second).n_iter;
  };
  ASSERT_EQ(iterations(), 5);
  int calls = 0;
  EXPECT_THROW(
      optimizer.step([&] {
        if (++calls == 3) {
          throw UserError("planted");
        }
        return valley.evaluate();
      }),
      UserError);
  EXPECT_EQ(iterations(), 5);
  optimizer.step([&] { return valley.evaluate(); });
  EXPECT_EQ(iterations(), 10);
}

TEST(Lbfgs, WrongOptionsAreNamed) {
  Valley valley;
  for (const auto& [options, text] : std::vector<std::pair<LBFGSOptions, std::string>>{
           {LBFGSOptions(torch::optim::LBFGSOptions().max_iter(0)), "max_iter is 0"},
           {LBFGSOptions(torch::optim::LBFGSOptions().history_size(0)), "history_size 0"},
           {LBFGSOptions(torch::optim::LBFGSOptions().line_search_fn(std::string("golden"))),
            "\"golden\""}}) {
    try {
      LBFGS(valley.parameters, options);
      FAIL() << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  }
}

} // namespace
} // namespace tessera::optim
