// Custom and built-in modules trained together; the norm of all gradients.
#include <set>

#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

struct Layout {
  int pp, tp;
};

std::vector<Layout> layouts_of_world() {
  return world_size() == 2 ? std::vector<Layout>{{1, 2}}
                           : std::vector<Layout>{{1, 4}, {2, 2}, {1, 2}};
}

TEST(TensorParallelTraining, CustomModule) {
  for (const Layout& layout : layouts_of_world()) {
    for (const bool prescaled : {false, true}) {
      const auto make = [] { return Mixed(); };
      const Config config = tp_config(layout.pp, layout.tp, prescaled);
      const int rdp = world_size() / layout.pp / layout.tp;
      const int slices = 2 * rdp * (prescaled ? 1 : layout.tp);
      const auto wanted = train_plain(make, word_batch, 5, slices, word_loss);
      const auto got = train_distributed(config, make, word_batch, 5, word_loss);
      expect_equal(
          got, wanted, str("pp ", layout.pp, ", tp ", layout.tp, ", prescaled ", prescaled));
    }
  }
}

// Stages with degrees of their own: what is whole sees the samples of its rank, what is divided
// those of the group.
TEST(TensorParallelTraining, ModulesThatStayWhole) {
  for (const Layout& layout : layouts_of_world()) {
    for (const bool prescaled : {false, true}) {
      for (const char* optimize : {"speed", "memory"}) {
        const auto make = [] { return Mixed(); };
        Config config = tp_config(layout.pp, layout.tp, prescaled);
        config.optimize = optimize;
        config.tensor_parallel_degree_of = {{"gated", 1}, {"words", 1}, {"last", layout.tp}};
        if (layout.pp == 2) {
          config.auto_partition = false;
          config.default_partition = 0;
          config.partition = {{"last", 1}};
        }
        const int rdp = world_size() / layout.pp / layout.tp;
        const int slices = 2 * rdp * (prescaled ? 1 : layout.tp);
        const auto wanted = train_plain(make, word_batch, 5, slices, word_loss);
        const auto got = train_distributed(config, make, word_batch, 5, word_loss);
        expect_equal(
            got,
            wanted,
            str("pp ", layout.pp, ", tp ", layout.tp, ", prescaled ", prescaled, ", ", optimize));
      }
    }
  }
}

TEST(TensorParallelTraining, ClipCountsEverythingOnce) {
  const double max_norm = 0.05;
  torch::manual_seed(7);
  Mixed plain;
  const Batch batch = word_batch(0);
  word_loss(plain(batch.x), batch.y).backward();
  const double wanted = torch::nn::utils::clip_grad_norm_(plain->parameters(), max_norm);
  ASSERT_GT(wanted, max_norm);
  TensorMap expected;
  for (const auto& item : plain->named_parameters()) {
    expected[item.key()] = item.value() - item.value().grad();
  }
  for (const Layout& layout : layouts_of_world()) {
    for (const bool prescaled : {false, true}) {
      for (const char* optimize : {"speed", "memory"}) {
        Config config = tp_config(layout.pp, layout.tp, prescaled);
        config.optimize = optimize;
        init(config);
        const Ended ended;
        torch::manual_seed(7);
        DistributedModel model{Mixed()};
        DistributedOptimizer optimizer(
            torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(1.0)));
        auto train_step = word_step(model);
        const Batch mine = mine_of(batch);
        train_step(mine.x, mine.y);
        EXPECT_NEAR(optimizer.clip_grad_norm(max_norm), wanted, 1e-5 * wanted);
        optimizer.step();
        for (const auto& [name, tensor] : model.state_dict()) {
          EXPECT_LE(relative_error(tensor, expected.at(name)), 1e-5)
              << name << ", tp " << layout.tp << ", " << prescaled << ", " << optimize;
        }
      }
    }
  }
}

void expect_as_plain(
    const TensorMap& state,
    const torch::nn::Module& plain,
    const Layout& layout,
    bool prescaled) {
  for (const auto& item : plain.named_parameters()) {
    if (state.contains(item.key())) {
      EXPECT_LE(relative_error(state.at(item.key()), item.value().detach()), 1e-5)
          << item.key() << ", pp " << layout.pp << ", tp " << layout.tp << ", " << prescaled;
    }
  }
}

// A script may leave gradients where they are: what the next step adds comes on top.
TEST(TensorParallelTraining, GradientsThatAreKeptStayWhatTheyAre) {
  constexpr int kSteps = 3;
  torch::manual_seed(7);
  Mixed plain;
  torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1));
  for (int i = 0; i < kSteps; ++i) {
    const Batch batch = word_batch(i);
    word_loss(plain(batch.x), batch.y).backward();
    reference.step();
  }
  for (const Layout& layout : layouts_of_world()) {
    for (const bool prescaled : {false, true}) {
      init(tp_config(layout.pp, layout.tp, prescaled));
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{Mixed()};
      DistributedOptimizer optimizer(
          torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
      auto train_step = word_step(model);
      for (int i = 0; i < kSteps; ++i) {
        const Batch mine = part_of(word_batch(i), data_size(), data_rank());
        train_step(mine.x, mine.y);
        optimizer.step();
      }
      expect_as_plain(model.state_dict(), *plain, layout, prescaled);
    }
  }
}

struct TwoLinearImpl : torch::nn::Module {
  TwoLinearImpl() {
    const tensor_parallelism marked;
    a = register_module("a", nn::Linear(6, 12));
    b = register_module("b", nn::Linear(12, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return b(torch::tanh(a(x)));
  }
  nn::Linear a{nullptr};
  nn::Linear b{nullptr};
};
TESSERA_MODULE(TwoLinear);

// A bias is on one rank of the group, which alone knows whether it is trained when all else is
// frozen, and the others have to take part in its backward.
TEST(TensorParallelTraining, ParametersFrozenBetweenSteps) {
  const auto freeze = [](torch::nn::Module& net, const std::set<std::string>& names, bool freezes) {
    for (auto& item : net.named_parameters()) {
      if (names.count(item.key()) != 0) {
        item.value().set_requires_grad(!freezes);
      }
    }
  };
  const auto batch_of = [](int step) {
    torch::manual_seed(800 + step);
    return Batch{torch::randn({16, 6}), torch::randn({16, 4})};
  };
  const std::vector<std::set<std::string>> frozen = {
      {"a.weight"}, {"a.weight", "b.weight"}, {"a.weight", "a.bias"}, {"a.weight", "b.bias"}};
  for (const std::set<std::string>& names : frozen) {
    torch::manual_seed(7);
    TwoLinear plain;
    torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1));
    for (int i = 0; i < 6; ++i) {
      freeze(*plain, names, i == 1 || i == 2 || i == 5);
      const Batch batch = batch_of(i);
      reference.zero_grad();
      torch::mse_loss(plain(batch.x), batch.y).backward();
      reference.step();
    }
    for (const Layout& layout : layouts_of_world()) {
      for (const bool prescaled : {false, true}) {
        init(tp_config(layout.pp, layout.tp, prescaled));
        const Ended ended;
        torch::manual_seed(7);
        DistributedModel model{TwoLinear()};
        DistributedOptimizer optimizer(
            torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
        auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
          auto loss = torch::mse_loss(model(x), y);
          model.backward(loss);
          return loss;
        });
        for (int i = 0; i < 6; ++i) {
          freeze(*model.net(), names, i == 1 || i == 2 || i == 5);
          const Batch mine = mine_of(batch_of(i));
          optimizer.zero_grad();
          train_step(mine.x, mine.y);
          optimizer.step();
        }
        expect_as_plain(model.state_dict(), *plain, layout, prescaled);
      }
    }
  }
}

// zero_grad(false) makes other tensors than the last averages, and a step may add to none of them.
TEST(TensorParallelTraining, GradientsThatAreZeroNeedNoAverage) {
  for (const Layout& layout : layouts_of_world()) {
    for (const bool prescaled : {false, true}) {
      init(tp_config(layout.pp, layout.tp, prescaled));
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{Mixed()};
      DistributedOptimizer optimizer(
          torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
      auto train_step = word_step(model);
      const Batch mine = part_of(word_batch(0), data_size(), data_rank());
      train_step(mine.x, mine.y);
      optimizer.step();
      const TensorMap before = model.state_dict();
      optimizer.zero_grad(/*set_to_none=*/false);
      optimizer.step();
      expect_same_bits(model.state_dict(), before);
    }
  }
}

// Of several passes only the last one averages: nobody can tell its sums from an average below.
TEST(TensorParallelTraining, PassesOnTopOfAnAverageAreAnError) {
  init(tp_config(1, 2));
  const Ended ended;
  ModelOptions options;
  options.backward_passes_per_step = 2;
  torch::manual_seed(7);
  DistributedModel model(Mixed(), options);
  auto train_step = word_step(model);
  const Batch mine = part_of(word_batch(0), data_size(), data_rank());
  train_step(mine.x, mine.y);
  train_step(mine.x, mine.y);
  train_step(mine.x, mine.y);
  EXPECT_THROW(train_step(mine.x, mine.y), UserError);
}

// Ranks that take gradients of several steps together average them once.
TEST(TensorParallelTraining, AccumulatedGradients) {
  const auto train = [&](int passes) {
    init(tp_config(1, 2));
    const Ended ended;
    torch::manual_seed(7);
    ModelOptions options;
    options.backward_passes_per_step = passes;
    DistributedModel model(Mixed(), options);
    DistributedOptimizer optimizer(
        torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(word_loss(model(x), y) / passes); });
    const Batch mine = mine_of(word_batch(0));
    for (int i = 0; i < passes; ++i) {
      train_step(mine.x, mine.y);
    }
    optimizer.step();
    return model.state_dict();
  };
  const TensorMap once = train(1);
  for (const auto& [name, tensor] : train(2)) {
    EXPECT_LE(relative_error(tensor, once.at(name)), 1e-6) << name;
  }
}

} // namespace
} // namespace tessera::testing
