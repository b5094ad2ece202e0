// Gradients that a script sets to zero inside of a step are those of plain data parallelism.
#include "tests/mpi/sharding/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

enum class Way { kOptimizer, kOptimizerInPlace, kModel, kModule, kModuleToNone };

constexpr Way kWays[] =
    {Way::kOptimizer, Way::kOptimizerInPlace, Way::kModel, Way::kModule, Way::kModuleToNone};

struct Zeroed {
  explicit Zeroed(int passes = 1)
      : net(made()), model(net, options_of(passes)), optimizer(sgd(model.parameters())) {}
  static Mixed made() {
    torch::manual_seed(7);
    return Mixed();
  }
  static ModelOptions options_of(int passes) {
    ModelOptions options;
    options.backward_passes_per_step = passes;
    return options;
  }
  void zero(Way way) {
    switch (way) {
      case Way::kOptimizer:
        return optimizer.zero_grad();
      case Way::kOptimizerInPlace:
        return optimizer.zero_grad(/*set_to_none=*/false);
      case Way::kModel:
        return model.zero_grad();
      case Way::kModule:
        return net->zero_grad();
      case Way::kModuleToNone:
        return net->zero_grad(/*set_to_none=*/true);
    }
  }
  at::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::mse_loss(model(x), y);
  }
  Mixed net;
  DistributedModel<Mixed> model;
  DistributedOptimizer optimizer;
};

/// The parameters after `script` has run for some steps under a degree; 1 is plain.
template <typename Script>
void expect_plain(const std::string& what, int microbatches, int passes, const Script& script) {
  TensorMap plain;
  for (const int degree : {1, world_size()}) {
    init(sharded(degree, microbatches));
    const Ended ended;
    Zeroed run(passes);
    for (int step = 0; step < 4; ++step) {
      script(run, mine_of(random_batches(16)(step)), step);
    }
    if (degree == 1) {
      plain = run.model.state_dict();
      for (const auto& [name, tensor] : plain) { // training that diverges would compare rounding
        ASSERT_LT(tensor.abs().max().item().toDouble(), 100) << what << ", " << name;
      }
    } else {
      expect_same(run.model.state_dict(), plain, what, 1e-5);
    }
  }
}

TEST(Zeroing, InTheFirstMicrobatchOfAStep) {
  for (const Way way : kWays) {
    for (const int microbatches : {1, 2}) {
      expect_plain(
          str("way ", static_cast<int>(way), ", microbatches ", microbatches),
          microbatches,
          1,
          [way](Zeroed& run, const Batch& mine, int step) {
            bool first = step != 2; // what the step before has left stays there in one of them
            tessera::step([&](torch::Tensor x, torch::Tensor y) {
              if (std::exchange(first, false)) {
                run.zero(way);
              }
              run.model.backward(run.loss(x, y));
            })(mine.x, mine.y);
            run.optimizer.step();
          });
    }
  }
}

TEST(Zeroing, InEveryMicrobatch) {
  for (const Way way : {Way::kOptimizer, Way::kOptimizerInPlace, Way::kModel}) {
    expect_plain(
        str("way ", static_cast<int>(way)), 2, 1, [way](Zeroed& run, const Batch& mine, int) {
          tessera::step([&](torch::Tensor x, torch::Tensor y) {
            run.zero(way);
            run.model.backward(run.loss(x, y));
          })(mine.x, mine.y);
          run.optimizer.step();
        });
  }
}

// As the two losses of a discriminator and its generator.
TEST(Zeroing, BetweenTwoBackwardsOfAStep) {
  for (const Way way : kWays) {
    expect_plain(
        str("way ", static_cast<int>(way)), 1, 1, [way](Zeroed& run, const Batch& mine, int) {
          tessera::step([&](torch::Tensor x, torch::Tensor y) {
            run.model.backward(run.loss(x, 2 * y));
            run.zero(way);
            run.model.backward(run.loss(x, y));
          })(mine.x, mine.y);
          run.optimizer.step();
        });
  }
}

TEST(Zeroing, InTheFirstOfTwoPasses) {
  for (const Way way : kWays) {
    expect_plain(
        str("way ", static_cast<int>(way)), 1, 2, [way](Zeroed& run, const Batch& mine, int) {
          for (int pass = 0; pass < 2; ++pass) {
            tessera::step([&](torch::Tensor x, torch::Tensor y) {
              if (pass == 0) {
                run.zero(way);
              }
              run.model.backward(0.1 * run.loss((pass + 1) * x, y)); // sums of passes are larger
            })(mine.x, mine.y);
          }
          run.optimizer.step();
        });
  }
}

// Zeros are a gradient, with which momentum goes on; no gradient is none.
TEST(Zeroing, OfWhatTheStepDoesNotReach) {
  for (const Way way : kWays) {
    expect_plain(
        str("way ", static_cast<int>(way)), 1, 1, [way](Zeroed& run, const Batch& mine, int step) {
          tessera::step([&](torch::Tensor x, torch::Tensor y) {
            run.zero(way);
            run.model.backward(step == 0 ? run.loss(x, y) : run.net->scale.pow(2).sum());
          })(mine.x, mine.y);
          run.optimizer.step();
        });
  }
}

TEST(Zeroing, BySomeRanksOnlyIsAnError) {
  init(sharded(world_size()));
  const Ended ended;
  Zeroed run;
  bool zeroes = false;
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    if (zeroes && rank() == 1) {
      run.net->zero_grad(/*set_to_none=*/true);
    }
    run.model.backward(run.loss(x, y));
  });
  const Batch mine = mine_of(random_batches(16)(0));
  step(mine.x, mine.y);
  zeroes = true;
  EXPECT_THAT(
      error_of<UserError>([&] { step(mine.x, mine.y); }),
      AllOf(HasSubstr("some ranks"), HasSubstr("optimizer.zero_grad()")));
}

// Of one optimizer leaves what another one has.
TEST(Zeroing, OfOneOfTwoOptimizers) {
  TensorMap plain;
  for (const int degree : {1, world_size()}) {
    init(sharded(degree));
    const Ended ended;
    Mixed net = Zeroed::made();
    DistributedModel model(net);
    auto one = sgd(net->wide->parameters());
    auto other = sgd(net->head->parameters());
    for (int i = 0; i < 4; ++i) {
      const Batch mine = mine_of(random_batches(16)(i));
      tessera::step([&](torch::Tensor x, torch::Tensor y) {
        one.zero_grad();
        model.backward(torch::mse_loss(model(x), y));
      })(mine.x, mine.y);
      one.step();
      if (i % 2 == 1) {
        other.step();
        other.zero_grad();
      }
    }
    if (degree == 1) {
      plain = model.state_dict();
    } else {
      expect_same(model.state_dict(), plain, "two optimizers", 1e-5);
    }
  }
}

} // namespace
} // namespace tessera::testing
