// The tracing pass runs the step function on microbatch 0; the step that follows must find its
// arguments as the script gave them.
#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

/// Changes what it is given, as many public models do to save memory.
struct InPlaceImpl : torch::nn::Module {
  InPlaceImpl() {
    blocks = register_module("blocks", Chain());
  }
  torch::Tensor forward(torch::Tensor x) {
    x.mul_(0.5).add_(1);
    return blocks(x.clone());
  }
  Chain blocks{nullptr};
};
TESSERA_MODULE(InPlace);

TEST(Arguments, AModelThatChangesItsInputChangesItOnce) {
  for (const int pp : pipelines()) {
    for (const int microbatches : {1, 2}) {
      SCOPED_TRACE(text_of(pp, microbatches));
      const int replicas = world_size() / pp;
      torch::manual_seed(7);
      InPlace plain;
      const Batch seen = random_batches()(0);
      double wanted = 0;
      for (int i = 0; i < microbatches * replicas; ++i) {
        const Batch part = part_of(seen, microbatches * replicas, i);
        wanted += squared(plain(part.x), part.y).item<double>() / (microbatches * replicas);
      }

      Config config = config_of(pp, microbatches);
      config.trace_execution_times = true; // a second run of the step function
      init(config);
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{InPlace()};
      auto forward = tessera::step(
          [&](torch::Tensor x, const torch::Tensor& y) { return squared(model(x), y); });
      const torch::NoGradGuard no_grad;
      const Batch mine = mine_of(random_batches()(0));
      double loss = 0;
      for (const double value :
           allgather(forward(mine.x, mine.y).reduce_mean().item<double>(), Group::kDP)) {
        loss += value / dp_size();
      }
      EXPECT_NEAR(loss, wanted, 1e-5 * wanted);
      if (pp_rank() == 0) {
        EXPECT_TRUE(mine.x.equal(mine_of(seen).x));
      }
    }
  }
}

// What the function can reach from its arguments: nested, twice the same, with gradients.
TEST(Arguments, TheTraceSeesCopiesOfEverything) {
  if (world_size() < 2) {
    return; // nothing is traced
  }
  init(config_of(2, 1));
  const Ended ended;
  DistributedModel model{Chain()};
  using Nested = std::map<std::string, std::vector<torch::Tensor>>;
  int traced = 0;
  int calls = 0;
  StepOptions options;
  options.non_split_inputs = {1, 2};
  auto look = tessera::step(
      [&](torch::Tensor x, Nested nested, torch::Tensor whole, std::vector<double> numbers) {
        traced += is_tracing() ? 1 : 0;
        ++calls;
        auto [first, second] = std::tie(nested.at("x")[0], nested.at("x")[1]);
        EXPECT_TRUE(first.is_same(second));
        EXPECT_TRUE(whole.requires_grad());
        EXPECT_FALSE(x.requires_grad());
        EXPECT_EQ(first[0].item<double>(), 1);
        EXPECT_EQ(whole[0].item<double>(), 1);
        EXPECT_EQ(numbers, (std::vector<double>{2, 3}));
        {
          const torch::NoGradGuard no_grad;
          first.add_(1);
          whole.add_(1);
        }
        EXPECT_EQ(second[0].item<double>(), 2);
        return model(x);
      },
      options);
  const torch::Tensor shared = torch::ones({3});
  const torch::Tensor whole = torch::ones({3}, torch::requires_grad());
  const Nested nested = {{"x", {shared, shared}}};
  look(torch::ones({2, kWidth}), nested, whole, std::vector<double>{2, 3});
  EXPECT_EQ(traced, rank() == 0 ? 1 : 0);
  EXPECT_EQ(calls, traced + (pp_rank() == 0 ? 1 : 0));
  const double wanted = pp_rank() == 0 ? 2 : 1; // changed by the step, and by nothing else
  EXPECT_EQ(shared[0].item<double>(), wanted);
  EXPECT_EQ(whole[0].item<double>(), wanted);
}

} // namespace
} // namespace tessera::testing
