// Models that are divided by operations equal one process, whatever their classes are.
#include <mpi.h>

#include <gmock/gmock.h>

#include "tests/support/parity.h"
#include "tests/support/tiny_models.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

Config by_operations(int pp, int microbatches = 1, const std::string& schedule = "interleaved") {
  Config config;
  config.partition_mode = "operations";
  config.pipeline_parallel_degree = pp;
  config.microbatches = microbatches;
  config.pipeline = schedule;
  config.ddp = world_size() > pp;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  config.allow_ranks_without_parameters = true; // some have fewer groups than ranks
  return config;
}

template <typename MakeNet>
void check(MakeNet make_net) {
  const int world = world_size();
  for (const int pp : {2, 3, 4}) {
    if (world % pp != 0) {
      continue;
    }
    for (const int microbatches : {1, 4}) {
      for (const char* schedule : {"simple", "interleaved"}) {
        const auto wanted = train_plain(make_net, random_batches(), 3, microbatches * (world / pp));
        const auto got = train_distributed(
            by_operations(pp, microbatches, schedule), make_net, random_batches(), 3);
        expect_equal(got, wanted, str("pp ", pp, ", ", schedule, ", microbatches ", microbatches));
      }
    }
  }
}

torch::nn::Sequential plain_sequential() {
  return torch::nn::Sequential(
      torch::nn::Linear(kWidth, 16),
      torch::nn::ReLU(torch::nn::ReLUOptions(true)), // in place
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
      torch::nn::Linear(16, 16),
      torch::nn::Tanh(),
      torch::nn::Linear(16, 16),
      torch::nn::GELU(),
      torch::nn::Linear(16, kWidth));
}

// A Sequential whose calls have a result for the plain loop, too.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(torch::nn::Sequential layers) : body(std::move(layers)) {
    register_module("body", body);
  }
  torch::Tensor forward(torch::Tensor x) {
    return body->forward(x);
  }
  torch::nn::Sequential body;
};
TORCH_MODULE(Stack);

Stack plain_stack() {
  return Stack(plain_sequential());
}

// Without any holder of this library, a parameter of its own, branches and views.
struct PlainImpl : torch::nn::Module {
  PlainImpl() {
    scale = register_parameter("scale", torch::full({kWidth}, 1.5));
    shift = register_buffer("shift", torch::full({kWidth}, 0.25));
    left = register_module("left", torch::nn::Linear(kWidth, kWidth));
    right = register_module("right", torch::nn::Linear(kWidth, kWidth));
    out = register_module("out", torch::nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    auto h = x * scale + shift;
    auto a = torch::tanh(left(h));
    auto b = torch::sigmoid(right(h)).view({-1, 2, kWidth / 2}).transpose(1, 2);
    b = b.contiguous().view({-1, kWidth});
    auto mask = torch::tensor({1.f, 0.f, 1.f, 1.f, 1.f, 1.f, 0.f, 1.f});
    auto both = torch::zeros({x.size(0), 2 * kWidth});
    both.slice(1, 0, kWidth).copy_(a * mask);
    both.slice(1, kWidth).add_(b);
    return out(both) + h;
  }
  torch::Tensor scale, shift;
  torch::nn::Linear left{nullptr}, right{nullptr}, out{nullptr};
};
TORCH_MODULE(Plain);

TEST(Operations, PlainSequential) {
  check(plain_stack);
}

TEST(Operations, ModuleWithoutAHolder) {
  check([] { return Plain(); });
}

TEST(Operations, ReusedModule) {
  check([] { return Reused(); });
}

TEST(Operations, TiedWeights) {
  check([] { return Tied(); });
}

TEST(Operations, NestedInputsAndOutputs) {
  check([] { return Nested(); });
}

TEST(Operations, UnusedBranches) {
  check([] { return Unused(); });
}

Stack with_dropout() {
  return Stack(torch::nn::Sequential(
      torch::nn::Linear(kWidth, 16),
      torch::nn::Dropout(0.3),
      torch::nn::Linear(16, 16),
      torch::nn::BatchNorm1d(16),
      torch::nn::Dropout(0.3),
      torch::nn::Linear(16, kWidth)));
}

TEST(Operations, DropoutAndBatchStatisticsAsOneProcess) {
  if (world_size() > 3) {
    return; // several replicas draw other numbers than one process
  }
  const auto wanted = train_plain(with_dropout, random_batches(), 3, 1);
  const auto got =
      train_distributed(by_operations(world_size()), with_dropout, random_batches(), 3);
  expect_equal(got, wanted, "one microbatch continues the script's random numbers");
}

TEST(Operations, TheSameBitsInEveryRun) {
  Config config = by_operations(world_size(), 4);
  config.reproducible = true;
  const auto run = [&] { return train_distributed(config, plain_stack, random_batches(), 3); };
  const auto first = run();
  const auto second = run();
  EXPECT_EQ(first.losses, second.losses);
  for (const auto& [name, tensor] : first.parameters) {
    EXPECT_TRUE(torch::equal(tensor, second.parameters.at(name))) << name;
  }
}

TEST(Operations, EveryRankHasItsPartAndEvaluatesOtherShapes) {
  init(by_operations(world_size(), 2));
  const Ended ended;
  torch::manual_seed(3);
  auto plain = plain_sequential();
  torch::manual_seed(3);
  DistributedModel model(plain_sequential());
  auto evaluate = tessera::step([&](torch::Tensor x) { return model(x); });
  torch::NoGradGuard no_grad;
  for (const int rows : {4, 6, 4}) {
    torch::manual_seed(rows);
    const auto x = torch::randn({rows, kWidth});
    const auto got = evaluate(x).concat();
    EXPECT_LE(relative_error(got, plain->forward(x)), 1e-6) << rows;
  }
  EXPECT_FALSE(model.local_parameters().empty());
  EXPECT_LT(model.local_parameters().size(), plain->parameters().size());
}

std::string text_of_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// What the step function sees: one network whose course a switch changes.
struct SwitchedImpl : torch::nn::Module {
  SwitchedImpl() {
    a = register_module("a", torch::nn::Linear(kWidth, kWidth));
    b = register_module("b", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    auto h = a(x);
    return b(other ? h.sin() : h.tanh());
  }
  bool other = false;
  torch::nn::Linear a{nullptr}, b{nullptr};
};
TORCH_MODULE(Switched);

TEST(Operations, AStepWithOtherOperatorsIsAnErrorOnEveryRank) {
  init(by_operations(world_size(), 2));
  const Ended ended;
  DistributedModel model{Switched()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).pow(2).mean();
    model.backward(loss);
    return loss;
  });
  const auto x = torch::ones({4, kWidth});
  train_step(x);
  model.net()->other = true;
  const std::string text = text_of_error([&] { train_step(x); });
  EXPECT_THAT(text, HasSubstr("operation 2 of the model's forward, aten::sin"));
  EXPECT_THAT(text, HasSubstr("aten::tanh"));
  model.net()->other = false;
  model.zero_grad();
  train_step(x);
}

struct ReaderImpl : torch::nn::Module {
  ReaderImpl() {
    a = register_module("a", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    return a(x) * x.abs().max().item<float>();
  }
  torch::nn::Linear a{nullptr};
};
TORCH_MODULE(Reader);

struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", Block());
    second = register_module("second", Block());
  }
  torch::Tensor forward(torch::Tensor x) {
    auto h = first(x);
    return recomputes ? checkpoint_call({}, second, h) : second(h);
  }
  bool recomputes = false;
  Block first{nullptr}, second{nullptr};
};
TESSERA_MODULE(Pair);

TEST(Operations, RecomputationOfAnotherModelOfTheProcessIsNoMatter) {
  const Pair other;
  set_activation_checkpointing(other->second);
  const auto make_net = [] { return Pair(); };
  const auto wanted = train_plain(make_net, random_batches(), 3, 2);
  const auto got = train_distributed(by_operations(world_size(), 2), make_net, random_batches(), 3);
  expect_equal(got, wanted, "another model is recomputed");
}

TEST(Operations, AModuleThatIsRecomputedIsRefusedByName) {
  for (const bool by_call : {false, true}) {
    init(by_operations(world_size()));
    const Ended ended;
    Pair net;
    net->recomputes = by_call;
    if (!by_call) {
      set_activation_checkpointing(net->second);
    }
    DistributedModel model{net};
    auto train_step = tessera::step([&](torch::Tensor x) {
      auto loss = model(x).mean();
      model.backward(loss);
      return loss;
    });
    const std::string text = text_of_error([&] { train_step(torch::ones({4, kWidth})); });
    EXPECT_THAT(text, HasSubstr("activation checkpointing (of module 'second')")) << by_call;
  }
}

TEST(Operations, AForwardThatReadsNumbersIsNamedInTheFirstStep) {
  init(by_operations(world_size()));
  const Ended ended;
  DistributedModel model{Reader()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).mean();
    model.backward(loss);
    return loss;
  });
  const std::string text = text_of_error([&] { train_step(torch::ones({4, kWidth})); });
  EXPECT_THAT(text, HasSubstr("aten::item"));
  EXPECT_THAT(text, HasSubstr("\"partition_mode\": \"modules\""));
}

} // namespace
} // namespace tessera::testing
