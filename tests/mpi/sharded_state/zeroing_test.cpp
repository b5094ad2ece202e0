// Gradients that a script sets to zero inside of a step, while their owners' averages are set
// aside.
#include "tests/mpi/sharded_state/support.h"

namespace tessera::testing {
namespace {

/// The parameters after `script`, with the state on every rank and shared out.
template <typename Make, typename Script>
void expect_unsharded(const std::string& what, const Make& make, const Script& script) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    auto run = make();
    for (int step = 0; step < 4; ++step) {
      script(*run, part_of(batch_at(step), data_size(), data_rank()), step);
    }
    if (sharded) {
      expect_state(run->model.state_dict(), wanted, what, 1e-6);
    } else {
      wanted = run->model.state_dict();
    }
  }
}

std::unique_ptr<Training> training() {
  return std::make_unique<Training>(How{.kind = Kind::kMomentum});
}

constexpr int kWays = 5;

void zero(Training& run, int way) {
  switch (way) {
    case 0:
      return run.optimizer.zero_grad();
    case 1:
      return run.optimizer.zero_grad(/*set_to_none=*/false);
    case 2:
      return run.model.zero_grad();
    case 3:
      return run.model.net()->zero_grad();
    default:
      return run.model.net()->zero_grad(/*set_to_none=*/true);
  }
}

TEST(ShardedZeroing, InAStep) {
  for (int way = 0; way < kWays; ++way) {
    expect_unsharded(str("way ", way), training, [way](Training& run, const Batch& mine, int step) {
      bool first = step != 2; // one step adds to what the one before has left
      tessera::step([&](torch::Tensor x, torch::Tensor y) {
        if (std::exchange(first, false)) {
          zero(run, way);
        }
        run.model.backward(torch::mse_loss(run.model(x), y));
      })(mine.x, mine.y);
      run.optimizer.step();
    });
  }
}

TEST(ShardedZeroing, BetweenTwoBackwards) {
  for (int way = 0; way < kWays; ++way) {
    expect_unsharded(str("way ", way), training, [way](Training& run, const Batch& mine, int) {
      bool first = true;
      tessera::step([&](torch::Tensor x, torch::Tensor y) {
        run.model.backward(torch::mse_loss(run.model(x), 2 * y));
        if (std::exchange(first, false)) {
          zero(run, way);
        }
        run.model.backward(torch::mse_loss(run.model(x), y));
      })(mine.x, mine.y);
      run.optimizer.step();
    });
  }
}

struct TwoOptimizers {
  TwoOptimizers()
      : model(made(7)),
        one(of(model.net()->a, model.net()->b)),
        other(of(model.net()->c, model.net()->d)) {}
  static DistributedOptimizer of(const nn::Linear& first, const nn::Linear& second) {
    auto parameters = first->parameters();
    for (const at::Tensor& parameter : second->parameters()) {
      parameters.push_back(parameter);
    }
    return sgd(parameters);
  }
  DistributedModel<Chain> model;
  DistributedOptimizer one, other;
};

// One optimizer's gradients add up over two steps, in which the other one's are set to zero.
TEST(ShardedZeroing, OfOneOfTwoOptimizers) {
  const auto make = [] { return std::make_unique<TwoOptimizers>(); };
  expect_unsharded("two optimizers", make, [](TwoOptimizers& run, const Batch& mine, int step) {
    bool first = true;
    tessera::step([&](torch::Tensor x, torch::Tensor y) {
      if (std::exchange(first, false)) {
        run.one.zero_grad();
      }
      run.model.backward(torch::mse_loss(run.model(x), y));
    })(mine.x, mine.y);
    run.one.step();
    if (step % 2 == 1) {
      run.other.step();
      run.other.zero_grad();
    }
  });
}

} // namespace
} // namespace tessera::testing
