// The same numbers as with all of the state everywhere, and as one process.
#include "tests/mpi/sharded_state/support.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 3;

struct Result {
  TensorMap state;
  std::vector<double> norms;
};

Result trained(const Strategy& strategy, bool sharded, const How& how) {
  init(config_of(strategy, sharded));
  const Ended ended;
  Training run(how);
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    result.norms.push_back(run.update(step));
  }
  expect_equal_replicas(run.model, strategy.text());
  result.state = run.model.state_dict();
  return result;
}

Result plain(const How& how) {
  PlainTraining run(how);
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    result.norms.push_back(run.update(step));
  }
  result.state = state_of(run.chain);
  return result;
}

void compare(const Result& got, const Result& wanted, const std::string& what, double tolerance) {
  expect_state(got.state, wanted.state, what, tolerance);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(got.norms[step], wanted.norms[step], tolerance * wanted.norms[step]) << what;
  }
}

void compare_all(const How& how) {
  // In 16 bits one process rounds elsewhere.
  const bool exact = how.type == at::kFloat;
  const Result alone = exact ? plain(how) : Result();
  for (const Strategy& strategy : strategies()) {
    const std::string what = strategy.text() + ", " + how.text();
    const Result whole = trained(strategy, false, how);
    const Result shared = trained(strategy, true, how);
    if (strategy.one_order() && !how.clip) {
      expect_same_bits(shared.state, whole.state, what);
    } else {
      compare(shared, whole, what, exact ? 1e-6 : 2e-2);
    }
    if (exact) {
      compare(shared, alone, what + ", beside one process", 1e-4);
    }
  }
}

TEST(ShardedState, TrainsWithMomentum) {
  compare_all({.kind = Kind::kMomentum});
}

TEST(ShardedState, TrainsWithAdamW) {
  compare_all({.kind = Kind::kAdamW});
}

TEST(ShardedState, TrainsWithNormsOfWholeParameters) {
  for (const Kind kind : {Kind::kLamb, Kind::kNovoGrad}) {
    compare_all({.kind = kind});
    compare_all({.kind = kind, .type = at::kBFloat16});
  }
}

TEST(ShardedState, ClipsByTheNormOfTheModel) {
  compare_all({.kind = Kind::kMomentum, .clip = 0.05});
  compare_all({.kind = Kind::kAdamW, .clip = 0.05});
}

TEST(ShardedState, TrainsSixteenBitsWithMasters) {
  compare_all({.kind = Kind::kAdamW, .type = at::kBFloat16});
  compare_all({.kind = Kind::kMomentum, .type = at::kBFloat16, .clip = 0.05});
}

TEST(ShardedState, AveragesEveryOtherPass) {
  compare_all({.kind = Kind::kAdamW, .passes = 2});
}

TEST(ShardedState, AClosureIsCalledOnce) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    Training run;
    double loss = 0;
    for (int step = 0; step < kSteps; ++step) {
      loss = run.optimizer
                 .step([&] {
                   run.optimizer.zero_grad();
                   const Batch mine = part_of(batch_at(step), data_size(), data_rank());
                   return step_of(run.model)(mine.x, mine.y).reduce_mean();
                 })
                 .item<double>();
    }
    for (const double other : allgather(loss, Group::kWorld)) {
      EXPECT_EQ(other, loss);
    }
    if (sharded) {
      expect_same_bits(run.model.state_dict(), wanted, "closure");
    } else {
      wanted = run.model.state_dict();
    }
  }
}

// The first has a learning rate of its own for biases; the second begins later.
TEST(ShardedState, OfTwoOptimizersOfOneModel) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    DistributedModel model{made(7)};
    const Chain& chain = model.net();
    DistributedOptimizer first(torch::optim::AdamW(
        {torch::optim::OptimizerParamGroup({chain->a->weight, chain->b->weight}),
         torch::optim::OptimizerParamGroup(
             {chain->a->bias, chain->b->bias}, std::make_unique<torch::optim::AdamWOptions>(0.1))},
        torch::optim::AdamWOptions(0.02)));
    std::optional<DistributedOptimizer> second;
    for (int step = 0; step < 4; ++step) {
      const Batch mine = part_of(batch_at(step), data_size(), data_rank());
      model.zero_grad();
      step_of(model)(mine.x, mine.y);
      if (step == 1) { // between a gradient and its use
        second.emplace(
            make_optimizer(Kind::kMomentum, {chain->c->weight, chain->c->bias, chain->d->weight}));
      }
      first.step();
      if (second) {
        second->step();
      }
    }
    if (sharded) {
      expect_same_bits(model.state_dict(), wanted, "two optimizers");
    } else {
      wanted = model.state_dict();
    }
  }
}

// One optimizer for two models that one step calls; their buckets travel in groups of their own.
TEST(ShardedState, OfTwoModels) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    DistributedModel one{made(7)};
    DistributedModel two{made(9)};
    auto parameters = one.parameters();
    for (const torch::Tensor& parameter : two.parameters()) {
      parameters.push_back(parameter);
    }
    DistributedOptimizer optimizer(make_optimizer(Kind::kAdamW, parameters));
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { one.backward((two(one(x)) - y).pow(2).mean()); });
    for (int step = 0; step < kSteps; ++step) {
      const Batch mine = part_of(batch_at(step), data_size(), data_rank());
      optimizer.zero_grad();
      train_step(mine.x, mine.y);
      optimizer.clip_grad_norm(0.5);
      optimizer.step();
    }
    TensorMap state = one.state_dict();
    for (const auto& [name, tensor] : two.state_dict()) {
      state["two." + name] = tensor;
    }
    if (sharded) {
      expect_state(state, wanted, "two models", 1e-6);
    } else {
      wanted = state;
    }
  }
}

// Parameters that an optimizer has left are everybody's again.
TEST(ShardedState, EndsWithItsOptimizer) {
  TensorMap wanted;
  for (const bool sharded : {false, true}) {
    init(config_of(Strategy(), sharded));
    const Ended ended;
    DistributedModel model{made(7)};
    const auto step = [&](int number) {
      const Batch mine = part_of(batch_at(number), data_size(), data_rank());
      step_of(model)(mine.x, mine.y);
    };
    {
      DistributedOptimizer optimizer(make_optimizer(Kind::kAdamW, model.parameters()));
      step(0);
      optimizer.step();
    }
    model.zero_grad();
    step(1);
    const bool replicated = dp_size() > 1;
    for (const auto& [name, tensor] : model.local_parameters()) {
      ASSERT_TRUE(tensor.grad().defined()) << name;
      for (const torch::Tensor& other : allgather(tensor.grad(), Group::kDP)) {
        EXPECT_TRUE(other.equal(tensor.grad())) << name << replicated;
      }
    }
    torch::optim::SGD own(model.parameters(), torch::optim::SGDOptions(0.1));
    own.step();
    if (sharded) {
      expect_same_bits(model.state_dict(), wanted, "an optimizer that ended");
    } else {
      wanted = model.state_dict();
    }
  }
}

} // namespace
} // namespace tessera::testing
