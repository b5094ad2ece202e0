// Options of a model that the documentation hands on to DDP: where gradients lie, and whether a
// step may pass parameters over.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kOptionSteps = 4;

struct OptionCase {
  std::string text;
  Config config;
};

/// Those with several replicas. `owners`: also with averages that go to one rank each.
std::vector<OptionCase> option_cases(bool owners) {
  std::vector<OptionCase> list;
  for (const auto& [pp, tp] : std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}}) {
    if (pp * tp <= world_size() && (pp == 1 || world_size() == 4)) {
      const Layout layout{pp, tp};
      Config config = config_of(layout);
      config.ddp = true;
      list.push_back({layout.text(), config});
      if (owners) {
        config.shard_optimizer_state = true;
        list.push_back({layout.text() + ", shard_optimizer_state", config});
      }
    }
  }
  return list;
}

/// A gradient has no more memory than its numbers need.
bool lies_alone(const torch::Tensor& gradient) {
  return gradient.storage().nbytes() == static_cast<std::size_t>(gradient.nbytes());
}

struct Seen {
  TensorMap state;
  int alone = 0; // gradients after steps that have memory of their own
  int shared = 0;
  int moved = 0; // to other memory, from one step to the next
  bool handles_follow = true; // what a script holds of a gradient has the next averages
};

/// `how`: of zero_grad. One bucket of several parameters.
Seen trained(const Config& config, bool views, bool set_to_none) {
  init(config);
  const Ended ended;
  ModelOptions options;
  options.gradient_as_bucket_view = views;
  DistributedModel model(made(7), options);
  auto optimizer = sgd(model.parameters());
  auto train_step = step_of(model);
  Seen seen;
  std::map<std::string, torch::Tensor> held;
  for (int step = 0; step < kOptionSteps; ++step) {
    const Batch mine = part_of(random_batches(24)(step), data_size(), data_rank());
    optimizer.zero_grad(set_to_none);
    train_step(mine.x, mine.y);
    for (const auto& [name, parameter] : model.local_parameters()) {
      const torch::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) {
        continue; // its average is another rank's
      }
      ++(lies_alone(gradient) ? seen.alone : seen.shared);
      if (const auto before = held.find(name); before != held.end()) {
        seen.moved += before->second.data_ptr() != gradient.data_ptr() ? 1 : 0;
        seen.handles_follow = seen.handles_follow && before->second.equal(gradient);
      }
      held[name] = gradient;
    }
    optimizer.step();
  }
  seen.state = model.state_dict();
  return seen;
}

TEST(GradientAsBucketView, TrueLeavesGradientsInTheBucket) {
  for (const OptionCase& entry : option_cases(/*owners=*/false)) {
    EXPECT_GT(trained(entry.config, true, true).shared, 0) << entry.text;
  }
}

TEST(GradientAsBucketView, FalseGivesEachGradientMemoryOfItsOwn) {
  for (const OptionCase& entry : option_cases(/*owners=*/true)) {
    for (const bool set_to_none : {true, false}) {
      const Seen wanted = trained(entry.config, true, set_to_none);
      const Seen got = trained(entry.config, false, set_to_none);
      EXPECT_GT(got.alone, 0) << entry.text;
      EXPECT_EQ(got.shared, 0) << entry.text;
      for (const auto& [name, tensor] : wanted.state) {
        EXPECT_TRUE(got.state.at(name).equal(tensor)) << entry.text << ", " << name;
      }
      if (!set_to_none && !entry.config.shard_optimizer_state) {
        EXPECT_EQ(got.moved, 0) << entry.text;
        EXPECT_TRUE(got.handles_follow) << entry.text;
      }
    }
  }
}

/// One branch or the other, or both, as an integer in the batch says.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    torch::manual_seed(7);
    first = register_module("first", nn::Linear(kWidth, kWidth));
    left = register_module("left", nn::Linear(kWidth, kWidth));
    right = register_module("right", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x, std::int64_t way) {
    x = first(x);
    if (way != 1) {
      x = left(x);
    }
    return way != 0 ? right(x) : x;
  }
  nn::Linear first{nullptr}, left{nullptr}, right{nullptr};
};
TESSERA_MODULE(Branches);

struct BranchCase {
  std::string text;
  Config config;
  int passes = 1;
};

std::vector<BranchCase> branch_cases() {
  std::vector<BranchCase> list;
  for (const int pp : {1, 2}) {
    if (world_size() == 2 * pp || pp == 1) {
      Config config = placed(pp, 2, {{"right", 1 % pp}});
      config.ddp = true;
      list.push_back({str("pp ", pp), config});
      list.push_back({str("pp ", pp, ", two passes"), config, 2});
    }
  }
  return list;
}

class BranchTraining {
 public:
  BranchTraining(int passes, bool find_unused)
      : model_(Branches(), options_of(passes, find_unused)) {
    x_ = torch::ones({4, kWidth});
  }
  /// Returns the step's error. `ways`: of each replica.
  std::string step(const std::vector<std::int64_t>& ways) {
    const std::int64_t way = ways.at(dp_rank() % ways.size());
    auto run =
        tessera::step([&](torch::Tensor x) { model_.backward(model_(x, way).pow(2).mean()); });
    return error_of<UserError>([&] { run(x_); });
  }
  void zero_grad() {
    model_.zero_grad();
  }
  void freeze(const std::string& prefix) {
    for (auto& item : model_.named_parameters()) {
      item.value().set_requires_grad(!item.key().starts_with(prefix));
    }
  }

 private:
  static ModelOptions options_of(int passes, bool find_unused) {
    ModelOptions options;
    options.backward_passes_per_step = passes;
    options.find_unused_parameters = find_unused;
    return options;
  }
  DistributedModel<Branches> model_;
  torch::Tensor x_;
};

TEST(FindUnusedParameters, FalseMakesAParameterThatNoBackwardReachesAnErrorOfAllRanks) {
  for (const BranchCase& entry : branch_cases()) {
    init(entry.config);
    const Ended ended;
    BranchTraining training(entry.passes, /*find_unused=*/false);
    // All passes but the last: nothing is averaged, so nothing is looked at.
    const auto passes_before = [&](const std::vector<std::int64_t>& ways) {
      for (int pass = 1; pass < entry.passes; ++pass) {
        EXPECT_EQ(training.step(ways), "") << entry.text;
      }
    };
    passes_before({2});
    EXPECT_EQ(training.step({2}), "") << entry.text;
    training.zero_grad();
    passes_before({2, 0});
    if (entry.passes == 1) {
      // The second replica passes `right` over, whose gradient the first has.
      EXPECT_THAT(
          training.step({2, 0}),
          AllOf(
              HasSubstr("no backward has reached the parameter 'right.weight' and 1 more"),
              HasSubstr("find_unused_parameters is false")))
          << entry.text;
    } else {
      // The first pass passed it over, the second one did not; and the other way round.
      EXPECT_EQ(training.step({2}), "") << entry.text;
      training.zero_grad();
      passes_before({2});
      EXPECT_EQ(training.step({0}), "") << entry.text;
      training.zero_grad();
      passes_before({0});
      EXPECT_THAT(training.step({0}), HasSubstr("'right.weight'")) << entry.text;
    }
    training.zero_grad();
    passes_before({2});
    EXPECT_EQ(training.step({2}), "") << entry.text << ": the next one";
    training.freeze("right");
    training.zero_grad();
    passes_before({0});
    EXPECT_EQ(training.step({0}), "") << entry.text << ": frozen";
  }
}

TEST(FindUnusedParameters, TrueLetsAStepPassThemOver) {
  for (const BranchCase& entry : branch_cases()) {
    init(entry.config);
    const Ended ended;
    BranchTraining training(entry.passes, /*find_unused=*/true);
    for (const std::int64_t way : {0, 2, 1, 0, 0, 1}) {
      EXPECT_EQ(training.step({way, (way + 1) % 3}), "") << entry.text;
    }
  }
}

TEST(OptionsOfDdp, AreRefusedWhereRanksKeepPartsOfGradients) {
  Config config = option_cases(false).front().config;
  config.sharded_data_parallel_degree = 2;
  const auto refusal = [&](const ModelOptions& options) {
    init(config);
    const Ended ended;
    return error_of<ConfigError>([&] { DistributedModel model(made(7), options); });
  };
  ModelOptions options;
  options.gradient_as_bucket_view = false;
  EXPECT_THAT(refusal(options), HasSubstr("ModelOptions::gradient_as_bucket_view"));
  options = {};
  options.find_unused_parameters = false;
  EXPECT_THAT(refusal(options), HasSubstr("ModelOptions::find_unused_parameters"));
}

} // namespace
} // namespace tessera::testing
