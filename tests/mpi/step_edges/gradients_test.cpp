// Backward passes that the script starts itself, past model.backward.
#include <gmock/gmock.h>

#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

enum class Kind { kGood, kWhole, kLocal, kInModule };

/// Trains, and where it is told so in a way that only a plain script may.
struct BlockThatTrainsImpl : torch::nn::Module {
  BlockThatTrainsImpl() {
    block = register_module("block", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = block(x);
    if (trains && torch::GradMode::is_enabled()) {
      y.pow(2).mean().backward();
    }
    return y;
  }
  Block block{nullptr};
  bool trains = false;
};
TESSERA_MODULE(BlockThatTrains);

struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    here = register_module("here", Block());
    there = register_module("there", BlockThatTrains());
  }
  torch::Tensor forward(const torch::Tensor& x, bool whole) {
    auto y = here(x);
    return whole ? there(y) : y;
  }
  Block here{nullptr};
  BlockThatTrains there{nullptr};
};
TESSERA_MODULE(Two);

void expect_refused(const Config& config, Kind bad, const std::string& what) {
  SCOPED_TRACE(what);
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Two()};
  Kind kind = Kind::kGood;
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x, kind != Kind::kLocal), y);
    if (kind == Kind::kGood) {
      model.backward(loss);
    } else if (kind != Kind::kInModule) {
      loss.backward();
    }
    return loss;
  });
  const Batch mine = mine_of(random_batches()(0));
  train_step(mine.x, mine.y);
  const TensorMap first = [&] {
    TensorMap gradients;
    for (const auto& [name, parameter] : model.local_parameters()) {
      gradients[name] = parameter.grad().clone();
    }
    return gradients;
  }();
  kind = bad;
  model.net()->there->trains = bad == Kind::kInModule;
  const std::string error = error_of<UserError>([&] { train_step(mine.x, mine.y); });
  EXPECT_THAT(error, HasSubstr("rank "));
  EXPECT_THAT(error, HasSubstr("microbatch 0"));
  EXPECT_THAT(error, HasSubstr("write model.backward(loss)"));
  // The next good step is as if nothing had been.
  kind = Kind::kGood;
  model.net()->there->trains = false;
  for (const auto& parameter : model.parameters()) {
    parameter.mutable_grad() = torch::Tensor();
  }
  train_step(mine.x, mine.y);
  for (const auto& [name, parameter] : model.local_parameters()) {
    EXPECT_LE(relative_error(parameter.grad(), first.at(name)), 1e-5) << name;
  }
}

TEST(PlainBackward, IsRefusedWhereverItReaches) {
  for (const int pp : pipelines()) {
    for (const int microbatches : {1, 2}) {
      for (const Kind bad : {Kind::kWhole, Kind::kLocal, Kind::kInModule}) {
        expect_refused(
            placed(pp, microbatches, {{"there", pp - 1}}),
            bad,
            str(text_of(pp, microbatches), ", kind ", static_cast<int>(bad)));
      }
    }
  }
}

TEST(PlainBackward, IsRefusedInTheFirstStepAndInTheTrace) {
  for (const int pp : pipelines()) {
    SCOPED_TRACE(text_of(pp, 2));
    init(config_of(pp, 2)); // traced with pp > 1
    const Ended ended;
    DistributedModel model{Chain()};
    auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
      auto loss = torch::mse_loss(model(x), y);
      loss.backward();
      return loss;
    });
    const Batch mine = mine_of(random_batches()(0));
    const std::string error = error_of<UserError>([&] { train_step(mine.x, mine.y); });
    EXPECT_THAT(error, HasSubstr("rank "));
    EXPECT_THAT(error, HasSubstr("microbatch 0"));
    EXPECT_THAT(error, HasSubstr("rite model.backward(loss)"));
  }
}

TEST(PlainBackward, OutsideAStepItIsTheScriptsOwn) {
  init(config_of(1, 1));
  const Ended ended;
  DistributedModel model{Chain()};
  model(torch::ones({2, kWidth})).sum().backward();
  EXPECT_TRUE(model.parameters().front().grad().defined());
}

torch::Tensor attacked(const torch::Tensor& x, const torch::Tensor& gradient) {
  return (x + 0.1 * gradient.sign()).detach();
}

// An adversarial example: the gradient of the input, and of no parameter.
TEST(GradientsOfInputs, CrossRanksAndLeaveParametersAlone) {
  const int steps = 4;
  for (const int pp : pipelines()) {
    for (const int mode : {0, 1, 2}) { // dynamic, static, fast
      if (mode > 0 && pp == 1) {
        continue;
      }
      SCOPED_TRACE(str(text_of(pp, 2), ", mode ", mode));
      const int slices = world_size() / pp * 2;
      const MakeBatch batches = random_batches();
      torch::manual_seed(7);
      Chain plain;
      torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
      for (int step = 0; step < steps; ++step) {
        plain_optimizer.zero_grad();
        for (int i = 0; i < slices; ++i) {
          const Batch part = part_of(batches(step), slices, i);
          auto x = part.x.clone().requires_grad_(true);
          const auto gradient = torch::autograd::grad({squared(plain(x), part.y)}, {x})[0];
          (squared(plain(attacked(x, gradient)), part.y) / slices).backward();
        }
        plain_optimizer.step();
      }

      Config config = chain_config(pp, 2);
      config.static_mode = mode > 0;
      config.static_mode_steps = mode > 0 ? 1 : 5;
      config.fast_mode = mode == 2;
      init(config);
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{Chain()};
      DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
      auto train_step = tessera::step([&](torch::Tensor given, torch::Tensor y) {
        auto x = given.clone().requires_grad_(true);
        const auto gradient = torch::autograd::grad({squared(model(x), y)}, {x})[0];
        model.backward(squared(model(attacked(x, gradient)), y));
      });
      for (int step = 0; step < steps; ++step) {
        const Batch mine = mine_of(batches(step));
        optimizer.zero_grad();
        train_step(mine.x, mine.y);
        optimizer.step();
      }
      const TensorMap state = model.state_dict();
      for (const auto& item : plain->named_parameters()) {
        EXPECT_LE(relative_error(state.at(item.key()), item.value().detach()), 1e-5) << item.key();
      }
    }
  }
}

// The penalty on the norm of an input's gradient needs gradients of gradients.
TEST(GradientsOfInputs, OfWhichThereAreGradientsStayOnOneRank) {
  for (const int pp : pipelines()) {
    SCOPED_TRACE(text_of(pp, 1));
    const int replicas = world_size() / pp;
    const Batch batch = random_batches()(0);
    const auto loss_of = [](const auto& net, const torch::Tensor& given) {
      auto x = given.clone().requires_grad_(true);
      const auto gradient =
          torch::autograd::grad({net(x).sum()}, {x}, {}, torch::nullopt, /*create_graph=*/true)[0];
      return (gradient.norm(2, 1) - 1).pow(2).mean();
    };
    init(chain_config(pp, 1));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{Chain()};
    auto train_step = tessera::step([&](torch::Tensor x) { model.backward(loss_of(model, x)); });
    const Batch mine = mine_of(batch);
    if (pp > 1) {
      const std::string error = error_of<UserError>([&] { train_step(mine.x); });
      EXPECT_THAT(error, HasSubstr("rank 0"));
      EXPECT_THAT(error, HasSubstr("microbatch 0"));
      EXPECT_THAT(error, HasSubstr("create_graph is not supported across ranks"));
      continue;
    }
    train_step(mine.x);
    torch::manual_seed(7);
    Chain plain;
    for (int i = 0; i < replicas; ++i) {
      (loss_of(plain, part_of(batch, replicas, i).x) / replicas).backward();
    }
    std::map<std::string, torch::Tensor> wanted;
    for (const auto& item : plain->named_parameters()) {
      wanted[item.key()] = item.value().grad();
    }
    for (const auto& [name, parameter] : model.local_parameters()) {
      ASSERT_EQ(parameter.grad().defined(), wanted.at(name).defined()) << name;
      if (parameter.grad().defined()) {
        EXPECT_LE(relative_error(parameter.grad(), wanted.at(name)), 1e-5) << name;
      }
    }
  }
}

TEST(GradientsOfInputs, AKeptGraphAcrossRanksIsRefused) {
  if (world_size() < 2) {
    return;
  }
  init(chain_config(2, 1));
  const Ended ended;
  DistributedModel model{Chain()};
  auto train_step = tessera::step([&](torch::Tensor given) {
    auto x = given.clone().requires_grad_(true);
    auto loss = model(x).sum();
    torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
    model.backward(loss);
  });
  const std::string error = error_of<UserError>([&] { train_step(torch::ones({2, kWidth})); });
  EXPECT_THAT(error, HasSubstr("retain_graph"));
  EXPECT_THAT(error, HasSubstr("'last'"));
}

// Half the gradient of the plain script, and nobody would see it.
std::pair<int, std::string> rank_and_text_of_loss(bool sum) {
  init(chain_config(pipelines().back(), 2));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Chain()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    const auto squares = model(x).pow(2);
    auto loss = sum ? squares.sum() : squares.mean();
    model.backward(loss);
    return loss;
  });
  const Batch mine = mine_of(random_batches()(0));
  ::testing::internal::CaptureStderr();
  train_step(mine.x);
  train_step(mine.x);
  return {rank(), ::testing::internal::GetCapturedStderr()};
}

TEST(Backward, ALossThatIsASumIsNamedOnce) {
  const auto [rank, text] = rank_and_text_of_loss(true);
  const std::string parts = str("the ", 2 * world_size() / pipelines().back(), " microbatches");
  const auto first = text.find("ends in a sum");
  if (rank == 0) {
    EXPECT_THAT(text, HasSubstr(parts));
    EXPECT_EQ(text.find("ends in a sum", first + 1), std::string::npos);
  } else {
    EXPECT_EQ(first, std::string::npos);
  }
  EXPECT_EQ(rank_and_text_of_loss(false).second.find("ends in a sum"), std::string::npos);
}

} // namespace
} // namespace tessera::testing
