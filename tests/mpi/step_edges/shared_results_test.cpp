// Modules on other ranks that return memory of their arguments, which the caller then changes.
#include <gmock/gmock.h>

#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

enum class Returns { kInput, kView, kTwice, kCopy };

struct SkippedImpl : torch::nn::Module {
  std::vector<torch::Tensor> forward(torch::Tensor x) {
    switch (returns) {
      case Returns::kInput:
        return {x};
      case Returns::kView:
        return {x.view(x.sizes())};
      case Returns::kTwice: {
        const auto y = x * 2;
        return {y, y};
      }
      default:
        return {x.clone()};
    }
  }
  Returns returns = Returns::kInput;
};
TESSERA_MODULE(Skipped);

enum class Changes { kNothing, kResult, kArgument, kResultAlone };

struct SkipNetImpl : torch::nn::Module {
  SkipNetImpl() {
    first = register_module("first", Block());
    skipped = register_module("skipped", Skipped());
    last = register_module("last", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = first(x) * 2; // which no backward reads
    auto all = skipped(h);
    auto y = all.front();
    if (changes == Changes::kResultAlone) {
      h = y;
      all.clear();
      return last(y.relu_());
    }
    if (changes == Changes::kResult) {
      y += 1;
    } else if (changes == Changes::kArgument) {
      h += 1;
    }
    return last(all.size() == 2 ? all[1] : changes == Changes::kArgument ? y : h);
  }
  Block first{nullptr};
  Skipped skipped{nullptr};
  Block last{nullptr};
  Changes changes = Changes::kNothing;
};
TESSERA_MODULE(SkipNet);

std::string
error_of_step(Returns returns, Changes changes, bool trains, std::map<std::string, int> partition) {
  init(placed(2, 2, partition));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{SkipNet()};
  model.net()->skipped->returns = returns;
  model.net()->changes = changes;
  auto step = tessera::step([&](torch::Tensor x) {
    const auto loss = model(x).pow(2).mean();
    if (trains) {
      model.backward(loss);
    }
    return loss;
  });
  std::optional<torch::NoGradGuard> no_grad;
  if (!trains) {
    no_grad.emplace();
  }
  try {
    step(some_rows());
  } catch (const UserError& error) {
    return error.what();
  }
  return "none";
}

TEST(SharedResults, AChangeThatTheOtherDoesNotSeeIsRefused) {
  if (world_size() != 2) {
    GTEST_SKIP() << "two pipeline ranks";
  }
  const std::map<std::string, int> apart = {{"skipped", 1}};
  for (const bool trains : {true, false}) {
    SCOPED_TRACE(trains);
    for (const Returns returns : {Returns::kInput, Returns::kView}) {
      for (const Changes changes : {Changes::kResult, Changes::kArgument}) {
        const std::string error = error_of_step(returns, changes, trains, apart);
        EXPECT_THAT(error, HasSubstr("module 'skipped' on rank 1 returned memory of one of its"));
        EXPECT_THAT(error, HasSubstr("microbatch 0"));
      }
      EXPECT_EQ(error_of_step(returns, Changes::kNothing, trains, apart), "none");
      EXPECT_EQ(error_of_step(returns, Changes::kResultAlone, trains, apart), "none");
    }
    EXPECT_THAT(
        error_of_step(Returns::kTwice, Changes::kResult, trains, apart),
        HasSubstr("returned the same memory twice"));
    EXPECT_EQ(error_of_step(Returns::kTwice, Changes::kNothing, trains, apart), "none");
    EXPECT_EQ(error_of_step(Returns::kCopy, Changes::kResult, trains, apart), "none");
    // On the caller's rank the other changes with it.
    EXPECT_EQ(error_of_step(Returns::kInput, Changes::kResult, trains, {{"last", 1}}), "none");
  }
}

} // namespace
} // namespace tessera::testing
