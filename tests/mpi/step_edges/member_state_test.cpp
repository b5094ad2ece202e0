// What a forward keeps in a member of its module: microbatches do not share it, and the tracing
// pass does not change what a step begins with.
#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 3;

/// Layers that the partition spreads over the ranks.
struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    for (int i = 0; i < 8; ++i) {
      layers->push_back(torch::nn::Linear(kWidth, kWidth));
      layers->push_back(torch::nn::Tanh());
    }
    register_module("layers", layers);
  }
  torch::Tensor run(const torch::Tensor& x) {
    return layers->forward(x);
  }
  torch::nn::Sequential layers;
};

/// Sets a member and reads it behind calls of modules on other ranks.
struct StashImpl : LayersImpl {
  torch::Tensor forward(torch::Tensor x) {
    skip_ = torch::sin(x);
    const torch::Tensor y = run(x) + skip_;
    skip_ = torch::Tensor();
    return y;
  }
  torch::Tensor skip_;
};
TESSERA_MODULE(Stash);

/// The member carries a graph of parameters.
struct CarriesGraphImpl : LayersImpl {
  torch::Tensor forward(torch::Tensor x) {
    first_ = layers[0]->as<torch::nn::Linear>()->forward(x);
    return run(x) + first_;
  }
  torch::Tensor first_;
};
TESSERA_MODULE(CarriesGraph);

/// Carries its hidden state from call to call.
struct CarriesImpl : LayersImpl {
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = run(x + hidden);
    hidden = y.mean(0).detach();
    return y;
  }
  void reset() {
    hidden = torch::zeros({kWidth});
  }
  torch::Tensor hidden = torch::zeros({kWidth});
};
TESSERA_MODULE(Carries);

/// The same in place, which the trace takes back.
struct WritesImpl : LayersImpl {
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = run(x + memory_);
    memory_.copy_(y.detach().mean(0));
    return y;
  }
  torch::Tensor memory_ = torch::zeros({kWidth});
};
TESSERA_MODULE(Writes);

struct Numbers {
  std::vector<double> losses;
  torch::Tensor evaluated;
};

// What a plain script computes that accumulates the gradients of its microbatches.
template <typename Net, typename Before>
Numbers plainly(int microbatches, const Before& before) {
  torch::manual_seed(7);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Numbers numbers;
  const MakeBatch batches = random_batches();
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batches(step);
    optimizer.zero_grad();
    double loss = 0;
    for (int i = 0; i < microbatches; ++i) {
      const Batch part = part_of(batch, microbatches, i);
      before(*net);
      const torch::Tensor mine = squared(net(part.x), part.y) / microbatches;
      mine.backward();
      loss += mine.template item<double>();
    }
    numbers.losses.push_back(loss);
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> parts;
  for (int i = 0; i < microbatches; ++i) {
    before(*net);
    parts.push_back(net(part_of(batches(kSteps), microbatches, i).x));
  }
  numbers.evaluated = torch::cat(parts);
  return numbers;
}

template <typename Net, typename Before>
Numbers distributed_by(const Config& config, const Before& before) {
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Net()};
  DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
  auto train_step = tessera::step([&](const torch::Tensor& x, const torch::Tensor& y) {
    before(*model.net());
    auto loss = squared(model(x), y);
    model.backward(loss);
    return loss;
  });
  auto evaluate = tessera::step([&](const torch::Tensor& x) {
    before(*model.net());
    return model(x);
  });
  Numbers numbers;
  const MakeBatch batches = random_batches();
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batches(step);
    optimizer.zero_grad();
    numbers.losses.push_back(train_step(batch.x, batch.y).reduce_mean().template item<double>());
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  numbers.evaluated = evaluate(batches(kSteps).x).concat();
  return numbers;
}

template <typename Net, typename Before>
void expect_equal(Config config, const Before& before) {
  SCOPED_TRACE(str("pipeline ", config.pipeline, ", static ", config.static_mode));
  const Numbers wanted = plainly<Net>(config.microbatches, before);
  const Numbers found = distributed_by<Net>(config, before);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(found.losses[step], wanted.losses[step], 1e-5 * wanted.losses[step]) << step;
  }
  EXPECT_TRUE(found.evaluated.allclose(wanted.evaluated, 1e-5, 1e-6));
}

// All ranks are one pipeline.
Config traced(int microbatches) {
  return config_of(world_size(), microbatches);
}

constexpr auto kNothing = [](auto&) {};

TEST(MemberState, MicrobatchesDoNotShareAStash) {
  if (world_size() == 1) {
    return;
  }
  for (const char* pipeline : {"interleaved", "simple"}) {
    Config config = traced(2);
    config.pipeline = pipeline;
    expect_equal<Stash>(config, kNothing);
    expect_equal<CarriesGraph>(config, kNothing);
  }
  Config config = traced(4);
  config.static_mode = true;
  config.static_mode_steps = 1;
  expect_equal<Stash>(config, kNothing);
}

TEST(MemberState, StateThatTheTraceChangesIsRefusedOnEveryRank) {
  if (world_size() == 1) {
    return;
  }
  const std::string text =
      error_of<UserError>([&] { distributed_by<Carries>(traced(1), kNothing); });
  EXPECT_NE(text.find("the model (Carries)"), std::string::npos) << text;
  EXPECT_NE(text.find("register_buffer"), std::string::npos) << text;
}

TEST(MemberState, StateThatTheStepSetsIsRight) {
  if (world_size() == 1) {
    return;
  }
  const auto reset = [](CarriesImpl& net) { net.reset(); };
  for (const int microbatches : {1, 2}) {
    expect_equal<Carries>(traced(microbatches), reset);
  }
}

/// Keeps what its caller was not given.
struct ShowsImpl : torch::nn::Module {
  ShowsImpl() {
    inner = register_module("inner", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = torch::tanh(inner->forward(x));
    weights = torch::softmax(y, -1);
    return y;
  }
  torch::nn::Linear inner{nullptr};
  torch::Tensor weights;
};
TESSERA_MODULE(Shows);

/// Reads it, as a penalty on attention weights does.
struct LooksImpl : torch::nn::Module {
  LooksImpl() {
    for (int i = 0; i < 8; ++i) {
      layers.push_back(register_module(str("layer", i), Shows()));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Shows& layer : layers) {
      x = layer->forward(x);
    }
    for (Shows& layer : layers) {
      x = x + layer->weights.pow(2).mean();
    }
    return x;
  }
  std::vector<Shows> layers;
};
TESSERA_MODULE(Looks);

// The reader would find what the tracing pass left there, and no gradient.
TEST(MemberState, AMemberThatIsReadOnAnotherRankIsRefusedOnEveryRank) {
  if (world_size() == 1) {
    return;
  }
  const std::string text = error_of<PlanError>([&] { distributed_by<Looks>(traced(1), kNothing); });
  EXPECT_NE(text.find("(Shows) keeps a tensor in a member"), std::string::npos) << text;
  EXPECT_NE(text.find("aten::pow"), std::string::npos) << text;
  Config whole = traced(1);
  whole.auto_partition = false;
  whole.default_partition = 0;
  whole.allow_ranks_without_parameters = true;
  expect_equal<Looks>(whole, kNothing);
}

// What standard error has of a run, from rank 0.
template <typename Net>
std::string said_by(const Config& config) {
  ::testing::internal::CaptureStderr();
  const std::string failure = error_of<UserError>([&] { distributed_by<Net>(config, kNothing); });
  const bool fails = std::is_same_v<Net, CarriesGraph> && config.skip_tracing;
  EXPECT_EQ(failure.empty(), !fails) << failure;
  const std::string text = ::testing::internal::GetCapturedStderr();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank == 0 ? text : std::string();
}

/// Keeps it when the step is over.
struct KeepsImpl : LayersImpl {
  torch::Tensor forward(torch::Tensor x) {
    skip_ = torch::sin(x);
    return run(x) + skip_;
  }
  torch::Tensor skip_;
};
TESSERA_MODULE(Keeps);

/// Keeps something in a member in evaluation only, which no trace of training shows.
struct CachesImpl : LayersImpl {
  torch::Tensor forward(torch::Tensor x) {
    if (!torch::GradMode::is_enabled() && !is_tracing()) {
      cache_ = x;
    }
    return run(x);
  }
  torch::Tensor cache_;
};
TESSERA_MODULE(Caches);

TEST(MemberState, StateThatNoTraceHasShownIsWarnedOf) {
  if (world_size() == 1) {
    return;
  }
  const auto warns = [](const std::string& text) {
    return text.find("which no tracing pass has shown") != std::string::npos;
  };
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  Config untraced = traced(2);
  untraced.skip_tracing = true;
  const std::string text = said_by<Keeps>(untraced);
  EXPECT_EQ(warns(text), rank == 0) << text;
  EXPECT_EQ(text.find("the model (Keeps)") != std::string::npos, rank == 0) << text;
  EXPECT_EQ(warns(said_by<CarriesGraph>(untraced)), rank == 0); // beside the error that it causes
  EXPECT_EQ(warns(said_by<Caches>(traced(2))), rank == 0);
  EXPECT_FALSE(warns(said_by<Keeps>(traced(2)))); // one at a time
  untraced.active_microbatches = 1;
  EXPECT_FALSE(warns(said_by<Keeps>(untraced)));
  untraced.active_microbatches = std::nullopt;
  EXPECT_FALSE(warns(said_by<Writes>(untraced)));
}

/// Estimates a norm from call to call, as spectral normalisation does.
struct EstimatesImpl : torch::nn::Module {
  EstimatesImpl() {
    linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
    norm = register_buffer("norm", torch::ones({1}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    norm.copy_(0.9 * norm + 0.1 * x.detach().abs().mean());
    return linear->forward(x / norm.clone()); // another call changes it before the backward
  }
  torch::nn::Linear linear{nullptr};
  torch::Tensor norm;
};
TESSERA_MODULE(Estimates);

template <int kCalls>
struct EstimatingImpl : LayersImpl {
  EstimatingImpl() {
    register_module("estimates", estimates);
  }
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor y = run(x);
    for (int i = 0; i < kCalls; ++i) {
      y = estimates->forward(y);
    }
    return y;
  }
  Estimates estimates;
};
using EstimatingOnceImpl = EstimatingImpl<1>;
using EstimatingTwiceImpl = EstimatingImpl<2>;
TESSERA_MODULE(EstimatingOnce);
TESSERA_MODULE(EstimatingTwice);

TEST(MemberState, ABufferThatCallsOfOtherMicrobatchesChangeInBetweenIsWarnedOf) {
  if (world_size() == 1) {
    return;
  }
  const auto warns = [](const std::string& text) {
    return text.find("'estimates' (Estimates) changes its buffer 'estimates.norm'") !=
           std::string::npos;
  };
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string text = said_by<EstimatingTwice>(traced(2));
  EXPECT_EQ(warns(text), rank == 0) << text;
  EXPECT_FALSE(warns(said_by<EstimatingOnce>(traced(2))));
  EXPECT_FALSE(warns(said_by<EstimatingTwice>(traced(1))));
  Config in_order = traced(2);
  in_order.reproducible = true;
  EXPECT_FALSE(warns(said_by<EstimatingTwice>(in_order)));
}

TEST(MemberState, WhatTheTraceWritesIntoAMemberIsTakenBack) {
  if (world_size() == 1) {
    return;
  }
  for (const int microbatches : {1, 2}) {
    expect_equal<Writes>(traced(microbatches), kNothing);
  }
}

} // namespace
} // namespace tessera::testing
