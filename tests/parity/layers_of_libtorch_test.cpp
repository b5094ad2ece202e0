// Models as scripts have them: only the net has a holder of this library, its layers are libtorch's
// own, held by value and in libtorch's containers. Each is spread over all pipeline ranks and
// equals the plain loop.
#include <mpi.h>

#include <gmock/gmock.h>

#include "tests/support/parity.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kWidth = 8;

struct ByValueImpl : torch::nn::Module {
  ByValueImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("norm", norm);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x.view({-1, 1, 2, 4});
    x = torch::relu(conv1->forward(x));
    x = torch::tanh(norm->forward(conv2->forward(x)));
    x = torch::relu(fc1->forward(x.flatten(1)));
    return fc2(x);
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 4, 3).padding(1)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(4, 4, 3).padding(1)};
  torch::nn::GroupNorm norm{2, 4};
  torch::nn::Linear fc1{32, 16}, fc2{16, kWidth};
};
TESSERA_MODULE(ByValue);

struct InSequenceImpl : torch::nn::Module {
  InSequenceImpl() {
    body = register_module(
        "body",
        torch::nn::Sequential(
            torch::nn::Linear(kWidth, 12),
            torch::nn::ReLU(),
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})),
            torch::nn::Linear(12, 12),
            torch::nn::Functional(torch::tanh),
            torch::nn::Linear(12, kWidth)));
  }
  torch::Tensor forward(torch::Tensor x) {
    return x + body->forward(x);
  }
  torch::nn::Sequential body{nullptr};
};
TESSERA_MODULE(InSequence);

// The decoder's weight is the embedding's; the recurrent layer returns a tuple.
struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() {
    embedding = register_module(
        "embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, kWidth).padding_idx(3)));
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, kWidth).batch_first(true)));
    decoder = register_module("decoder", torch::nn::Linear(kWidth, 11));
    decoder->weight = decoder->register_parameter("tied", embedding->weight);
    middle = register_module("middle", torch::nn::Linear(11, 11));
    out = register_module("out", torch::nn::Linear(11, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto ids = (x.abs() * 5).to(torch::kLong).clamp_max(10);
    const auto [hidden, state] = lstm->forward(embedding->forward(ids));
    const auto scores = decoder->forward(hidden + std::get<0>(state).mean()).mean(1);
    return out->forward(torch::tanh(middle->forward(scores)));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear decoder{nullptr}, middle{nullptr}, out{nullptr};
};
TESSERA_MODULE(Recurrent);

// A parent that reads a child's weight past the child's forward keeps the child on its rank.
struct ReadsChildImpl : torch::nn::Module {
  ReadsChildImpl() {
    first = register_module("first", torch::nn::Linear(kWidth, 16));
    second = register_module("second", torch::nn::Linear(16, kWidth));
    third = register_module("third", torch::nn::Linear(kWidth, kWidth));
    fourth = register_module("fourth", torch::nn::Linear(kWidth, kWidth));
    fifth = register_module("fifth", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto norm = first->weight.pow(2).sum().sqrt();
    x = torch::linear(x, first->weight / norm, first->bias);
    return fifth(torch::tanh(fourth(third(torch::tanh(second(torch::relu(x)))))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, fourth{nullptr},
      fifth{nullptr};
};
TESSERA_MODULE(ReadsChild);

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

Config config_of(int pp, int microbatches, const std::string& mode) {
  Config config;
  config.pipeline_parallel_degree = pp;
  config.microbatches = microbatches;
  config.ddp = world_size() > pp;
  config.static_mode = mode == "static" || mode == "fast";
  config.partition_mode = mode == "operations" ? "operations" : "modules";
  config.fast_mode = mode == "fast";
  if (config.static_mode) {
    config.static_mode_steps = 2;
  }
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  config.memory_weight = 1.0;
  return config;
}

template <typename Net>
void check() {
  const auto make_net = [] { return Net(); };
  for (const int pp : {2, 4}) {
    const int dp = world_size() / pp;
    if (world_size() % pp != 0 || dp > 2) {
      continue;
    }
    for (const auto& [microbatches, mode] : std::vector<std::pair<int, std::string>>{
             {1, "dynamic"}, {2, "dynamic"}, {2, "static"}, {2, "fast"}, {2, "operations"}}) {
      const auto wanted = train_plain(make_net, random_batches(), 5, dp * microbatches);
      const auto got =
          train_distributed(config_of(pp, microbatches, mode), make_net, random_batches(), 5);
      expect_equal(got, wanted, str("pp ", pp, ", ", microbatches, " microbatches, ", mode));
    }
  }
}

TEST(LayersOfLibtorch, HeldByValue) {
  check<ByValue>();
}
TEST(LayersOfLibtorch, InASequential) {
  check<InSequence>();
}
TEST(LayersOfLibtorch, RecurrentWithATiedWeight) {
  check<Recurrent>();
}
TEST(LayersOfLibtorch, AWeightThatTheParentReads) {
  check<ReadsChild>();
}

TEST(LayersOfLibtorch, EveryRankOwnsParameters) {
  init(config_of(world_size(), 2, "dynamic"));
  const Ended ended;
  torch::manual_seed(1);
  auto model = distributed(ByValue());
  auto forward = tessera::step([&](torch::Tensor x) { return model->forward(x); });
  forward(torch::ones({4, kWidth}));
  EXPECT_GT(model.local_parameters().size(), 0U);
}

struct OneImpl : torch::nn::Module {
  OneImpl() {
    weight = register_parameter("weight", torch::ones({kWidth}));
  }
  torch::Tensor forward(torch::Tensor x) {
    return x * weight;
  }
  torch::Tensor weight;
};
TESSERA_MODULE(One);

TEST(LayersOfLibtorch, ARankWithoutParametersIsAnError) {
  Config config = config_of(world_size(), 1, "dynamic");
  init(config);
  const Ended ended;
  auto model = distributed(One());
  auto forward = tessera::step([&](torch::Tensor x) { return model->forward(x); });
  try {
    forward(torch::ones({4, kWidth}));
    FAIL() << "a rank that does nothing";
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(), HasSubstr("would own no parameter of One"));
    EXPECT_THAT(error.what(), HasSubstr("allow_ranks_without_parameters"));
  }
}

TEST(LayersOfLibtorch, AParameterReadByTheStepFunctionIsAnError) {
  init(config_of(world_size(), 1, "dynamic"));
  const Ended ended;
  auto model = distributed(ByValue());
  auto forward = tessera::step([&](torch::Tensor x) {
    return model->forward(x).sum() + model.net()->fc2->weight.pow(2).sum();
  });
  try {
    forward(torch::ones({4, kWidth}));
    FAIL() << "read a parameter of another rank";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parameter 'fc2.weight' (operator aten::pow"));
    EXPECT_THAT(error.what(), HasSubstr("tessera::over_parameters"));
  }
}

} // namespace
} // namespace tessera::testing
