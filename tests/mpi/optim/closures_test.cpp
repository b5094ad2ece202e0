// optimizer.step(closure): LBFGS over ranks beside torch's in one process, and
// optimizers that call their closure once.
#include "tessera/optim/lbfgs.h"

#include "tests/mpi/optim/support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::LBFGSOptions;

constexpr int kSteps = 3;

LBFGSOptions lbfgs_options(bool line_search) {
  LBFGSOptions options(line_search ? 1 : 0.5);
  options.max_iter(4).history_size(3); // short enough to drop pairs
  if (line_search) {
    options.line_search_fn("strong_wolfe");
  }
  return options;
}

struct Result {
  std::vector<double> losses;
  TensorMap state;
};

/// A plain script: gradients of the whole batch, one process.
template <typename Optimizer>
Result plain(Chain chain, Optimizer& optimizer, const Batch& batch, int steps = kSteps) {
  Result result;
  for (int i = 0; i < steps; ++i) {
    const torch::Tensor loss = optimizer.step([&] {
      optimizer.zero_grad();
      auto value = torch::mse_loss(chain(batch.x), batch.y);
      value.backward();
      return value;
    });
    result.losses.push_back(loss.template item<double>());
  }
  result.state = state_of(chain);
  return result;
}

struct LbfgsRun {
  explicit LbfgsRun(at::ScalarType type, const LBFGSOptions& options)
      : model{made(dp_rank() == 0 ? 7 : 8, type)},
        optimizer(torch::optim::LBFGS(model.parameters(), options)),
        mine(part_of(batch_of(type), data_size(), data_rank())) {}
  double step() {
    auto train_step = step_of(model);
    return optimizer
        .step([&] {
          optimizer.zero_grad();
          return train_step(mine.x, mine.y).reduce_mean();
        })
        .item<double>();
  }
  DistributedModel<Chain> model;
  DistributedOptimizer optimizer;
  Batch mine;
};

TEST(Lbfgs, IsThatOfOneProcess) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const bool line_search : {false, true}) {
      Chain chain = made(7, type);
      torch::optim::LBFGS reference(chain->parameters(), lbfgs_options(line_search));
      const Result wanted = plain(chain, reference, batch_of(type));
      ASSERT_LT(wanted.losses.back(), 0.9 * wanted.losses.front());
      for (const Layout& layout : layouts()) {
        const std::string what =
            tessera::str(layout.text(), ", ", type, line_search ? ", line search" : "");
        init(config_of(layout));
        const Ended ended;
        LbfgsRun run(type, lbfgs_options(line_search));
        for (int i = 0; i < kSteps; ++i) {
          EXPECT_NEAR(run.step(), wanted.losses[i], 1e-5 * wanted.losses[i]) << what << ", " << i;
        }
        expect_state(run.model.state_dict(), wanted.state, what, type == at::kDouble ? 1e-9 : 1e-5);
      }
    }
  }
}

// A run that was saved goes on under every layout as if it had not ended.
TEST(Lbfgs, GoesOnFromACheckpointOfAnotherLayout) {
  const SharedFolder folder;
  const auto options = lbfgs_options(true);
  TensorMap wanted;
  {
    init(config_of(layouts().front()));
    const Ended ended;
    LbfgsRun run(at::kDouble, options);
    run.step();
    run.step();
    tessera::save(run.model, run.optimizer, folder.path(), "two");
    run.step();
    wanted = run.model.state_dict();
  }
  for (const Layout& layout : layouts()) {
    init(config_of(layout));
    const Ended ended;
    LbfgsRun run(at::kDouble, options);
    ASSERT_TRUE(tessera::load(run.model, run.optimizer, folder.path()));
    run.step();
    expect_state(run.model.state_dict(), wanted, layout.text(), 1e-9);
  }
}

TEST(Lbfgs, SaysWhatToWrite) {
  init(config_of(layouts().back()));
  const Ended ended;
  LbfgsRun run(at::kFloat, lbfgs_options(false));
  EXPECT_THAT(
      error_of<UserError>([&] { run.optimizer.step(); }), HasSubstr("optimizer.step([&] {"));
  EXPECT_THAT(
      error_of<UserError>([&] { run.optimizer.inner().step([] { return torch::ones({}); }); }),
      HasSubstr("past its DistributedOptimizer"));
  EXPECT_THAT(
      error_of<UserError>([&] { run.optimizer.step([] { return torch::Tensor(); }); }),
      HasSubstr("got no loss"));
  EXPECT_THAT(
      error_of<ConfigError>([&] {
        DistributedOptimizer(torch::optim::LBFGS(
            run.model.parameters(), LBFGSOptions().line_search_fn(std::string("golden"))));
      }),
      HasSubstr("golden"));
  run.step(); // as if nothing had happened
}

torch::optim::Adam adam(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::Adam(parameters, torch::optim::AdamOptions(0.05));
}

TEST(Closure, OfAnOptimizerThatCallsItOnce) {
  Chain chain = made(7);
  auto reference = adam(chain->parameters());
  const Result wanted = plain(chain, reference, batch_of());
  for (const Layout& layout : layouts()) {
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(dp_rank() == 0 ? 7 : 8)};
    DistributedOptimizer optimizer(adam(model.parameters()));
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    auto train_step = step_of(model);
    for (int i = 0; i < kSteps; ++i) {
      const double loss = optimizer
                              .step([&] {
                                optimizer.zero_grad();
                                return train_step(mine.x, mine.y).reduce_mean();
                              })
                              .item<double>();
      EXPECT_NEAR(loss, wanted.losses[i], 1e-5 * wanted.losses[i]) << layout.text();
      for (const double other : allgather(loss, Group::kWorld)) {
        EXPECT_EQ(other, loss) << layout.text();
      }
    }
    expect_state(model.state_dict(), wanted.state, layout.text());
  }
}

// The optimizer works on f32 masters, which the closure does not see.
TEST(Closure, OfAModelInSixteenBits) {
  const auto train = [](bool closure) {
    init(config_of(layouts().back()));
    const Ended ended;
    DistributedModel model{made(7, at::kBFloat16)};
    DistributedOptimizer optimizer(adam(model.parameters()));
    const Batch mine = part_of(batch_of(at::kBFloat16), data_size(), data_rank());
    auto train_step = step_of(model);
    const auto evaluate = [&] {
      optimizer.zero_grad();
      return train_step(mine.x, mine.y).reduce_mean();
    };
    for (int i = 0; i < kSteps; ++i) {
      if (closure) {
        optimizer.step(evaluate);
      } else {
        evaluate();
        optimizer.step();
      }
    }
    return model.state_dict();
  };
  const TensorMap wanted = train(false);
  expect_state(train(true), wanted, "closure", 1e-6);
  for (const auto& [name, tensor] : state_of(made(7, at::kBFloat16))) {
    EXPECT_GT(relative_error(wanted.at(name), tensor), 1e-3) << name << " was not trained";
  }
}

/// Evaluates twice and keeps the second gradients.
struct Twice : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure) override {
    closure();
    return SGD::step(closure);
  }
};

TEST(Closure, ASecondCallIsRefusedWhereNoRankHoldsTheModel) {
  for (const Layout& layout : layouts()) {
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(7)};
    DistributedOptimizer optimizer(Twice(model.parameters(), torch::optim::SGDOptions(0.1)));
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    auto train_step = step_of(model);
    const std::string error = error_of<UserError>([&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        return train_step(mine.x, mine.y).reduce_mean();
      });
    });
    if (mp_size() > 1) {
      EXPECT_THAT(error, HasSubstr("calls its closure more than once")) << layout.text();
    } else {
      EXPECT_EQ(error, "") << layout.text();
    }
  }
}

// An overflow of the second call cannot undo what the first one has led to.
TEST(Closure, ASecondCallIsRefusedWithALossScale) {
  Config config = config_of(Layout{1, 1});
  config.fp16 = true;
  init(config);
  const Ended ended;
  DistributedModel model{made(7)};
  DistributedOptimizer optimizer(Twice(model.parameters(), torch::optim::SGDOptions(0.1)));
  const Batch mine = part_of(batch_of(), data_size(), data_rank());
  auto train_step = step_of(model);
  EXPECT_THAT(
      error_of<UserError>([&] {
        optimizer.step([&] {
          optimizer.zero_grad();
          return train_step(mine.x, mine.y).reduce_mean();
        });
      }),
      HasSubstr("\"bf16\": true in place of fp16"));
}

} // namespace
} // namespace tessera::testing
