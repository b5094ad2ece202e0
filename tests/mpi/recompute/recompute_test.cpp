// Activation checkpointing under pipelines: the same numbers as without it, regions of the children
// that a rank has, and what it says where a region would span two ranks.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <thread>

#include <gmock/gmock.h>

#include "tessera/recompute/recomputation.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kMicrobatches = 2;

/// Names of the regions in which layers of this rank ran, in order, each once.
std::vector<std::string>& regions() {
  static std::vector<std::string> list;
  return list;
}

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const std::string* region = recompute::inside();
    if (at::GradMode::is_enabled() || region != nullptr) { // not the tracing pass
      const std::string name = region == nullptr ? "none" : *region;
      if (std::find(regions().begin(), regions().end(), name) == regions().end()) {
        regions().push_back(name);
      }
    }
    return x + torch::dropout(torch::tanh(norm(linear(x))), 0.25, is_training());
  }
  nn::Linear linear{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TESSERA_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(int layers) {
    for (int i = 0; i < layers; ++i) {
      body->push_back(Layer());
    }
    register_module("body", body);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return one_call ? checkpoint_sequential(body, x, {.strategy = "contiguous"}) : body(x);
  }
  nn::Sequential body;
  bool one_call = false;
};
TESSERA_MODULE(Stack);

/// Layer i of `owners.size()` on pp rank owners[i].
Config stacked(int pp, const std::vector<int>& owners) {
  std::map<std::string, int> partition;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    partition[str("body.", i)] = std::min(owners[i], pp - 1);
  }
  return placed(pp, kMicrobatches, partition);
}

const std::vector<int> kOwners{0, 0, 1, 1, 1};

int pipeline() {
  return std::min(world_size(), 2);
}

/// One training step; the regions of every pp rank.
std::vector<std::vector<std::string>> regions_of_step(
    const std::vector<int>& owners,
    const std::function<void(Stack)>& flag) {
  init(stacked(pipeline(), owners));
  const Ended ended;
  torch::manual_seed(7);
  Stack net(static_cast<int>(owners.size()));
  flag(net);
  DistributedModel model(net);
  regions().clear();
  auto train_step = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
  train_step(mine_of(random_batches(16)(0)).x);
  return allgather(regions(), Group::kPP);
}

TEST(Recompute, RegionsAreRunsOfChildrenOnOneRank) {
  if (world_size() < 2) {
    GTEST_SKIP() << "needs two pipeline ranks";
  }
  const auto flagged = [](const std::string& strategy) {
    return [=](Stack net) { set_activation_checkpointing(net->body, {.strategy = strategy}); };
  };
  const std::string of = " of module 'body'";
  EXPECT_THAT(
      regions_of_step(kOwners, flagged("group_3")),
      ElementsAre(ElementsAre("children 0 to 1" + of), ElementsAre("children 2 to 4" + of)));
  EXPECT_THAT(
      regions_of_step({0, 0, 1, 1}, flagged("contiguous")),
      ElementsAre(ElementsAre("children 0 to 1" + of), ElementsAre("children 2 to 3" + of)));
  EXPECT_THAT(
      regions_of_step(kOwners, flagged("group_2")),
      ElementsAre(
          ElementsAre("children 0 to 1" + of),
          ElementsAre("children 2 to 3" + of, "child 4" + of)));
  EXPECT_THAT(
      regions_of_step({0, 1, 1}, flagged("each")),
      ElementsAre(ElementsAre("child 0" + of), ElementsAre("child 1" + of, "child 2" + of)));
  EXPECT_THAT(
      regions_of_step({0, 1}, flagged("each")),
      ElementsAre(ElementsAre("child 0" + of), ElementsAre("child 1" + of)));
  // One call says it; its owner is told.
  EXPECT_THAT(
      regions_of_step({0, 1, 1}, [](Stack net) { net->one_call = true; }),
      ElementsAre(
          ElementsAre("child 0 of a Sequential"), ElementsAre("children 1 to 2 of a Sequential")));
}

TEST(Recompute, NumbersAreThoseWithoutIt) {
  for (const int pp : {1, 2, 4}) {
    if (pp > world_size()) {
      continue;
    }
    for (const std::string mode : {"dynamic", "simple", "static", "fast", "reproducible"}) {
      const auto train = [&](const std::string& strategy) {
        Config config = stacked(pp, {0, 1, 1, 2, 3});
        config.static_mode = mode == "static" || mode == "fast";
        config.static_mode_steps = config.static_mode ? 1 : 5;
        config.fast_mode = mode == "fast";
        config.reproducible = mode == "reproducible";
        if (mode == "simple") {
          config.pipeline = "simple";
        }
        const auto make = [&] {
          Stack net(5);
          if (!strategy.empty()) {
            set_activation_checkpointing(net->body, {.strategy = strategy});
          }
          return net;
        };
        return train_distributed(config, make, random_batches(16), 4);
      };
      const Trained wanted = train("");
      for (const char* strategy : {"each", "contiguous", "selective"}) {
        expect_equal(train(strategy), wanted, str("pp ", pp, ", ", mode, ", ", strategy), 1e-6);
      }
    }
  }
}

/// What pp rank 0 did, in words and in order: "step", "loss 2", "again 0".
std::vector<std::string>& history() {
  static std::vector<std::string> list;
  return list;
}

/// A layer whose runs take time. Rows of a microbatch begin with its number.
struct SlowImpl : torch::nn::Module {
  SlowImpl(int first_ms, int again_ms) : first_ms(first_ms), again_ms(again_ms) {
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const bool again = recompute::inside() != nullptr && at::GradMode::is_enabled();
    std::this_thread::sleep_for(std::chrono::milliseconds(again ? again_ms : first_ms));
    if (again) {
      history().push_back(str("again ", std::lround(x[0][0].item<double>())));
    }
    const auto y = torch::tanh(linear(x));
    return torch::cat({x.narrow(1, 0, 1), y.narrow(1, 1, kWidth - 1)}, 1);
  }
  int first_ms;
  int again_ms;
  nn::Linear linear{nullptr};
};
TESSERA_MODULE(Slow);

/// Eight layers on pp rank 0, whose second runs take long, and one on pp rank 1, whose forward
/// does.
struct UnevenImpl : torch::nn::Module {
  explicit UnevenImpl(bool recomputed) {
    for (int i = 0; i < 8; ++i) {
      const Slow layer(0, 10);
      if (recomputed) {
        set_activation_checkpointing(layer);
      }
      body->push_back(layer);
    }
    body->push_back(Slow(40, 0));
    register_module("body", body);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return body(x);
  }
  nn::Sequential body;
};
TESSERA_MODULE(Uneven);

/// Three microbatches of two rows for each replica.
Batch numbered_batch(int step) {
  history().push_back("step");
  const auto rows = 6 * world_size() / pipeline();
  Batch batch = random_batches(rows)(step);
  for (int row = 0; row < rows; ++row) {
    batch.x[row][0] = batch.y[row][0] = row / 2 % 3;
  }
  return batch;
}

torch::Tensor noted_loss(const torch::Tensor& out, const torch::Tensor& y) {
  history().push_back(str("loss ", std::lround(y[0][0].item<double>())));
  return torch::mse_loss(out, y);
}

/// How many losses lie between two regions of one backward, after three steps: static steps are
/// recorded in those.
int interruptions() {
  int found = 0;
  int steps = 0;
  for (auto loss = history().begin(); loss != history().end(); ++loss) {
    steps += *loss == "step" ? 1 : 0;
    if (steps <= 3 || !loss->starts_with("loss") || !std::prev(loss)->starts_with("again")) {
      continue;
    }
    const auto end = std::find(loss, history().end(), "step");
    found += std::find(loss, end, *std::prev(loss)) != end ? 1 : 0;
  }
  return found;
}

TEST(Recompute, ABackwardThatNobodyWaitsForGivesWayToTheNextLoss) {
  if (world_size() < 2) {
    GTEST_SKIP() << "needs two pipeline ranks";
  }
  for (const std::string mode : {"dynamic", "static", "fast", "reproducible"}) {
    Config config = placed(pipeline(), 3, {{"body.8", 1}});
    config.static_mode = mode == "static" || mode == "fast";
    config.static_mode_steps = config.static_mode ? 1 : 5;
    config.fast_mode = mode == "fast";
    config.reproducible = mode == "reproducible";
    const auto train = [&](bool recomputed) {
      history().clear();
      const auto make = [&] { return Uneven(recomputed); };
      return train_distributed(config, make, numbered_batch, 7, noted_loss);
    };
    const Trained wanted = train(false);
    EXPECT_EQ(interruptions(), 0) << mode;
    const Trained got = train(true);
    const bool runs_the_step =
        std::any_of(history().begin(), history().end(), [](const std::string& what) {
          return what.starts_with("loss");
        });
    if (runs_the_step) { // of four steps one at least has the two ranks beside each other
      EXPECT_GT(interruptions(), 0) << mode;
    }
    EXPECT_EQ(got.losses, wanted.losses) << mode; // each microbatch's own order of additions
    expect_equal(got, wanted, mode, 1e-6);
    if (config.reproducible) {
      expect_equal(train(true), got, mode, 0); // wherever it gave way
    }
  }
}

// The backward that gave way is unwound, and the next step is a whole one.
TEST(Recompute, AnErrorInWhatABackwardGaveWayToEndsTheStep) {
  if (world_size() < 2) {
    GTEST_SKIP() << "needs two pipeline ranks";
  }
  init(placed(pipeline(), 3, {{"body.8", 1}}));
  const Ended ended;
  DistributedModel model{Uneven(true)};
  bool fails = false;
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    const auto loss = noted_loss(model(x), y);
    const auto& before = history().end()[-2];
    if (fails && before.starts_with("again")) {
      throw UserError("a loss that cannot be");
    }
    model.backward(loss);
  });
  const auto run = [&](int step) {
    const Batch mine = mine_of(numbered_batch(step));
    for (at::Tensor parameter : model.parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
    return error_of<UserError>([&] { train_step(mine.x, mine.y); });
  };
  EXPECT_EQ(run(0), "");
  fails = true;
  std::string error;
  for (int step = 1; step < 6 && error.empty(); ++step) { // a loaded machine may need another
    error = run(step);
  }
  EXPECT_THAT(error, HasSubstr("a loss that cannot be"));
  fails = false;
  EXPECT_EQ(run(6), "");
}

struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", Layer());
    second = register_module("second", Layer());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(first(x));
  }
  Layer first{nullptr}, second{nullptr};
};
TESSERA_MODULE(Pair);

struct PairsImpl : torch::nn::Module {
  PairsImpl() {
    pair = register_module("pair", Pair());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return pair(x);
  }
  Pair pair{nullptr};
};
TESSERA_MODULE(Pairs);

std::string error_of_step(const Config& config, bool before) {
  init(config);
  const Ended ended;
  Pairs net;
  if (before) {
    set_activation_checkpointing(net->pair);
  }
  DistributedModel model(net);
  regions().clear();
  auto train_step = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
  const Batch mine = mine_of(random_batches(16)(0));
  return error_of<Error>([&] {
    train_step(mine.x);
    if (!before) {
      set_activation_checkpointing(net->pair);
      train_step(mine.x);
    }
  });
}

struct BorrowerImpl : torch::nn::Module {
  explicit BorrowerImpl(Layer borrowed) : layer(register_module("layer", std::move(borrowed))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::tanh(layer(x));
  }
  Layer layer;
};
TESSERA_MODULE(Borrower);

/// `user` holds a layer whose path is that of its other holder.
struct SharingImpl : torch::nn::Module {
  SharingImpl() {
    layer = register_module("layer", Layer());
    user = register_module("user", Borrower(layer));
    set_activation_checkpointing(user);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return user(layer(x));
  }
  Layer layer{nullptr};
  Borrower user{nullptr};
};
TESSERA_MODULE(Sharing);

TEST(Recompute, ARegionOverTwoRanksIsSaidOfALayerThatAnotherModuleHolds) {
  if (world_size() < 2) {
    GTEST_SKIP() << "needs two pipeline ranks";
  }
  init(placed(pipeline(), kMicrobatches, {{"user", 0}, {"layer", 1}}));
  const Ended ended;
  DistributedModel model{Sharing()};
  auto train_step = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
  const Batch mine = mine_of(random_batches(16)(0));
  EXPECT_THAT(
      error_of<Error>([&] { train_step(mine.x); }),
      HasSubstr("activation checkpointing of module 'user' needs all of it on one pipeline rank: "
                "it is on rank 0, its module 'layer' on rank 1"));
}

TEST(Recompute, ARegionOverTwoRanksIsSaid) {
  if (world_size() < 2) {
    GTEST_SKIP() << "needs two pipeline ranks";
  }
  const Config manual = placed(pipeline(), kMicrobatches, {{"pair.second", 1}});
  EXPECT_THAT(
      error_of_step(manual, true),
      ::testing::AllOf(
          HasSubstr(
              "activation checkpointing of module 'pair' needs all of it on one pipeline rank"),
          HasSubstr("it is on rank 0, its module 'pair.second' on rank 1")));
  EXPECT_THAT(
      error_of_step(manual, false),
      HasSubstr("is recomputed in its backward, so all of it must be on one pipeline rank, but it "
                "calls module 'pair.second' on another"));
  EXPECT_EQ(error_of_step(config_of(pipeline(), kMicrobatches), true), "");
  for (const std::string& region : regions()) {
    EXPECT_EQ(region, "none"); // the flag was left out
  }
}

} // namespace
} // namespace tessera::testing
