// Gradients that a script makes in other ways than one step for each update: right, or refused.
#include "tests/mpi/sharded_state/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

/// The parameters after `script`, with the state on every rank and shared out.
template <typename Script>
void expect_same(const Script& script, int steps = 3) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    Training run({.kind = Kind::kMomentum});
    for (int step = 0; step < steps; ++step) {
      script(run, step);
    }
    expect_equal_replicas(run.model, "");
    if (sharded) {
      expect_state(run.model.state_dict(), wanted, "shared out", 1e-6);
    } else {
      wanted = run.model.state_dict();
    }
  }
}

TEST(ShardedGradients, AddUpOverSteps) {
  expect_same([](Training& run, int step) {
    if (step % 2 == 0) {
      run.optimizer.zero_grad();
    }
    run.backward(3 * step);
    run.backward(3 * step + 1); // on top of an average
    run.optimizer.step();
    run.backward(3 * step + 2); // and of one that was used already
    run.optimizer.clip_grad_norm(0.1);
    run.optimizer.step();
  });
}

TEST(ShardedGradients, AreZeroedInPlaceOrFreed) {
  for (const int how : {0, 1, 2}) {
    expect_same([how](Training& run, int step) {
      if (how == 0) {
        run.model.zero_grad();
      } else {
        run.optimizer.zero_grad(how == 1);
      }
      run.backward(step);
      run.optimizer.step();
    });
  }
}

// As a script that zeroes them where the loss is made.
TEST(ShardedGradients, AreZeroedInsideAStep) {
  expect_same([](Training& run, int step) {
    const Batch mine = part_of(batch_at(step), data_size(), data_rank());
    int microbatch = 0;
    tessera::step([&](torch::Tensor x, torch::Tensor y) {
      if (microbatch++ == 0) {
        run.optimizer.zero_grad();
      }
      auto loss = (run.model(x) - y).pow(2).mean();
      run.model.backward(loss);
      return loss;
    })(mine.x, mine.y);
    run.optimizer.step();
  });
}

TEST(ShardedGradients, OfABackwardWithoutAStep) {
  expect_same([](Training& run, int step) {
    run.optimizer.zero_grad();
    const Batch mine = part_of(batch_at(step), data_size(), data_rank());
    if (step == 0) {
      run.backward(step); // has the model partitioned
    } else {
      torch::mse_loss(run.model(mine.x), mine.y).backward();
    }
    run.optimizer.step();
  });
}

TEST(ShardedGradients, OfABackwardBeforeTheFirstStep) {
  expect_same([](Training& run, int step) {
    if (step == 0) {
      run.model.net()->a->weight.sum().backward();
    } else if (step == 2) {
      run.optimizer.zero_grad();
    }
    run.backward(step);
    run.optimizer.step();
  });
}

TEST(ShardedGradients, OfAnUpdateBetweenTwoPasses) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    Training run({.kind = Kind::kMomentum, .passes = 2});
    run.backward(0);
    run.optimizer.step();
    run.backward(1);
    run.optimizer.step();
    if (sharded) {
      expect_state(run.model.state_dict(), wanted, "shared out", 1e-6);
    } else {
      wanted = run.model.state_dict();
    }
  }
}

// From the owner's sum neither the average nor what was added can be told.
TEST(ShardedGradients, AddedToAnAverageAreRefused) {
  init(config_of(Strategy(), true));
  const Ended ended;
  Training run;
  run.update(0);
  run.optimizer.zero_grad();
  run.backward(1);
  run.model.net()->a->weight.pow(2).sum().backward();
  const std::string error = error_of<UserError>([&] { run.optimizer.step(); });
  EXPECT_THAT(error, HasSubstr("'a.weight'"));
  EXPECT_THAT(error, HasSubstr("inside the step function"));
  run.update(2); // as if nothing had happened
  expect_equal_replicas(run.model, "after the error");
}

// The rank whose sum cannot be known has no backward in the step that averages it.
TEST(ShardedGradients, AddedToAnAverageOnARankWithoutBackwardAreRefused) {
  init(config_of(Strategy(), true));
  const Ended ended;
  Training run;
  run.update(0);
  run.optimizer.zero_grad();
  run.backward(1);
  const torch::Tensor weight = run.model.net()->a->weight;
  const bool owner = weight.grad().defined();
  if (owner) {
    weight.pow(2).sum().backward();
  }
  const Batch mine = part_of(batch_at(2), data_size(), data_rank());
  const auto train = [&](bool here) {
    tessera::step([&](torch::Tensor x, torch::Tensor y) {
      auto loss = (run.model(x) - y).pow(2).mean();
      if (here) {
        run.model.backward(loss);
      }
    })(mine.x, mine.y);
  };
  EXPECT_NO_THROW(train(false)); // nothing is averaged
  EXPECT_THAT(error_of<UserError>([&] { train(!owner); }), HasSubstr("'a.weight'"));
  run.update(2); // as if nothing had happened
  expect_equal_replicas(run.model, "after the error");
}

TEST(ShardedGradients, SetByHandAreRefused) {
  init(config_of(Strategy(), true));
  const Ended ended;
  Training run;
  run.update(0);
  run.optimizer.zero_grad();
  run.backward(1);
  for (const auto& [name, tensor] : run.model.local_parameters()) {
    if (tensor.grad().defined()) {
      tensor.mutable_grad() = 0.5 * tensor.grad();
    }
  }
  EXPECT_THAT(
      error_of<UserError>([&] { run.optimizer.clip_grad_norm(1); }), HasSubstr("no backward made"));
}

TEST(ShardedGradients, ScaledInPlaceAreUsed) {
  expect_same([](Training& run, int step) {
    run.optimizer.zero_grad();
    run.backward(step);
    for (const auto& [name, tensor] : run.model.local_parameters()) {
      if (tensor.grad().defined()) {
        tensor.mutable_grad().mul_(0.5);
      }
    }
    run.optimizer.step();
  });
}

// Frozen after the backward: a gradient is there, so the update uses it.
TEST(ShardedGradients, OfFrozenParameters) {
  expect_same([](Training& run, int step) {
    const torch::Tensor weight = run.model.net()->b->weight;
    run.optimizer.zero_grad();
    weight.requires_grad_(step != 1);
    run.backward(step);
    weight.requires_grad_(step != 2);
    run.optimizer.step();
  });
}

struct LookUpImpl : torch::nn::Module {
  LookUpImpl() {
    table = register_module(
        "table", nn::Embedding(torch::nn::EmbeddingOptions(29, kWidth).sparse(true)));
    out = register_module("out", nn::Linear(kWidth, 1));
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    return out(torch::tanh(table(rows)));
  }
  nn::Embedding table{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(LookUp);

TEST(ShardedGradients, SparseOnesGoToTheirOwner) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{LookUp()};
    DistributedOptimizer optimizer(
        torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    for (int step = 0; step < 4; ++step) {
      torch::manual_seed(300 + step);
      const Batch mine = part_of(
          {torch::randint(0, 29, {kRows}), torch::randn({kRows, 1})}, data_size(), data_rank());
      if (step != 2) { // then on top of sparse averages
        optimizer.zero_grad();
      }
      train_step(mine.x, mine.y);
      optimizer.clip_grad_norm(0.5);
      optimizer.step();
    }
    if (sharded) {
      expect_state(model.state_dict(), wanted, "sparse", 1e-6);
    } else {
      wanted = model.state_dict();
    }
  }
}

} // namespace
} // namespace tessera::testing
