// deterministic_server: replicas run their tasks in one order, so modules may
// hold collectives over the data-parallel group.
#include <chrono>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "tessera/context/context.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

// Each rank sleeps its own way, so requests arrive in another order everywhere.
void dawdle() {
  static std::mt19937 random(static_cast<unsigned>(tessera::rank()));
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
}

/// Mean of x over the data-parallel replicas. Its gradient is the mean of the
/// replicas' gradients: what each adds to the mean of the losses.
struct MeanOverReplicas : torch::autograd::Function<MeanOverReplicas> {
  static torch::Tensor mean(const torch::Tensor& x) {
    auto result = x.detach().clone() / dp_size();
    context().group(Group::kDP).all_reduce(result);
    return result;
  }
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return mean(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    return {mean(gradients[0].contiguous())};
  }
};

/// Subtracts the mean over the batch of all replicas, then a layer.
struct CentredImpl : torch::nn::Module {
  CentredImpl() {
    layer = register_module("layer", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_initialized()) {
      dawdle();
    }
    auto mean = x.mean(0);
    if (is_initialized() && !is_tracing()) {
      mean = MeanOverReplicas::apply(mean);
    }
    return torch::tanh(layer(x - mean));
  }
  nn::Linear layer{nullptr};
};
TESSERA_MODULE(Centred);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (const char* name : {"a", "b", "c", "d"}) {
      parts.push_back(register_module(name, Centred()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = x;
    for (auto& part : parts) {
      h = h + part(h);
    }
    return h + parts[1](h); // one that is called twice
  }
  std::vector<Centred> parts;
};
TESSERA_MODULE(Stack);

// The plain loop sees microbatch i of all replicas as one slice.
MakeBatch interleaved_rows(int rows, int replicas, int microbatches) {
  return [=](int step) {
    const Batch batch = random_batches(rows)(step);
    std::vector<torch::Tensor> x;
    std::vector<torch::Tensor> y;
    for (int i = 0; i < microbatches; ++i) {
      for (int r = 0; r < replicas; ++r) {
        const Batch part = part_of(part_of(batch, replicas, r), microbatches, i);
        x.push_back(part.x);
        y.push_back(part.y);
      }
    }
    return Batch{torch::cat(x), torch::cat(y)};
  };
}

void check_collectives(const std::string& schedule) {
  const int microbatches = 4;
  const int rows = 16;
  // Two pipeline ranks where there are enough for two replicas.
  const int pp = world_size() >= 4 ? 2 : 1;
  Config config = placed(pp, microbatches, {{"b", 1}, {"d", 1}});
  config.deterministic_server = true;
  config.pipeline = schedule;
  const int replicas = world_size() / pp;
  const auto make = [] { return Stack(); };
  const auto wanted =
      train_plain(make, interleaved_rows(rows, replicas, microbatches), 4, microbatches);
  const auto got = train_distributed(config, make, random_batches(rows), 4);
  expect_equal(got, wanted, schedule);
}

TEST(Order, CollectivesInsideModulesInterleaved) {
  check_collectives("interleaved");
}

TEST(Order, CollectivesInsideModulesSimple) {
  check_collectives("simple");
}

/// Calls `more` as often as the data says.
struct UnevenImpl : torch::nn::Module {
  UnevenImpl() {
    first = register_module("first", Block());
    more = register_module("more", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = first(x);
    for (int i = 0; i < static_cast<int>(x[0][0].item<float>()); ++i) {
      h = more(h);
    }
    return h;
  }
  Block first{nullptr}, more{nullptr};
};
TESSERA_MODULE(Uneven);

TEST(Order, ReplicasThatCallDifferentModulesAreToldSo) {
  if (world_size() < 4) {
    GTEST_SKIP() << "needs two replicas of two ranks";
  }
  Config config = placed(2, 1, {{"more", 1}});
  config.deterministic_server = true;
  init(config);
  const Ended ended;
  torch::manual_seed(1);
  DistributedModel model{Uneven()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  const torch::NoGradGuard no_grad;
  const auto even = torch::ones({2, kWidth});
  forward(even);
  // The replica that leads has one call, the other two.
  const std::string text = error_of<UserError>([&] { forward(dp_rank() == 0 ? even : even * 2); });
  EXPECT_THAT(text, HasSubstr("the flow of modules differs between replicas"));
  EXPECT_THAT(text, HasSubstr("deterministic_server"));
  forward(even); // and it can go on
}

} // namespace
} // namespace tessera::testing
