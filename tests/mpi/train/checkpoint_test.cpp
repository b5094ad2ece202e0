// Checkpoints as a script meets them: of another layout, of another model, with
// a file that cannot be read. (A full disk: tests/cli/full_disk_test.sh.)
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "tests/mpi/runtime/support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct KeptNetImpl : torch::nn::Module {
  explicit KeptNetImpl(int width = kWidth) {
    a = register_module("a", nn::Linear(kWidth, width));
    norm = register_module("norm", nn::BatchNorm1d(width));
    b = register_module("b", nn::Linear(width, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return b(torch::tanh(norm(a(x))));
  }
  nn::Linear a{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Linear b{nullptr};
};
TESSERA_MODULE(KeptNet);

struct KeptRun {
  explicit KeptRun(int width = kWidth)
      : model{KeptNet(width)},
        optimizer(torch::optim::AdamW(model.parameters(), torch::optim::AdamWOptions(0.01))) {}
  void step(int number) {
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    const Batch mine = mine_of(random_batches(16)(number));
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  DistributedModel<KeptNet> model;
  DistributedOptimizer optimizer;
};

/// The partition, and with it what was loaded.
void run_forward(const KeptRun& run) {
  auto forward = tessera::step([&](torch::Tensor x) { return run.model(x); });
  run.model.eval();
  {
    const torch::NoGradGuard no_grad;
    forward(torch::ones({4, kWidth}));
  }
  run.model.train();
}

Config kept_config(int pp) {
  return placed(pp, 2, {{"b", pp - 1}, {"norm", pp / 2}});
}

// Two checkpoints of one run: after one step and after two.
std::string save_two(const SharedFolder& folder, bool full) {
  init(kept_config(2));
  const Ended ended;
  torch::manual_seed(3);
  KeptRun run;
  SaveOptions options;
  options.full = full;
  run.step(0);
  save(run.model, run.optimizer, folder.path(), "one", options);
  run.step(1);
  return save(run.model, run.optimizer, folder.path(), "two", options).state_hash;
}

// Parameters, buffers and optimizer state are the saved ones, bit for bit: the
// hash over all of them does not depend on the layout.
TEST(CheckpointOfOtherLayout, LoadsBitForBit) {
  for (const bool full : {false, true}) {
    const SharedFolder folder;
    const std::string hash = save_two(folder, full);
    for (const int pp : {1, 2, 4}) {
      if (world_size() % pp != 0) {
        continue;
      }
      init(kept_config(pp));
      const Ended ended;
      torch::manual_seed(4);
      KeptRun run;
      const auto loaded = load(run.model, run.optimizer, folder.path());
      ASSERT_TRUE(loaded.has_value());
      EXPECT_EQ(loaded->state_hash, hash);
      EXPECT_TRUE(loaded->warnings.empty());
      // Nothing is known of the parameters before the partition: one forward.
      auto forward = tessera::step([&](torch::Tensor x) { return run.model(x); });
      run.model.eval();
      {
        const torch::NoGradGuard no_grad;
        forward(torch::ones({4, kWidth}));
      }
      const std::string tag = str("again_", pp);
      EXPECT_EQ(save(run.model, run.optimizer, folder.path(), tag).state_hash, hash)
          << "pp " << pp << (full ? ", full" : ", partial");
      folder.change([&](const fs::path& path) {
        fs::remove_all(path / tag); // `newest` names it and is passed over
        fs::remove(path / "newest");
      });
    }
  }
}

// The parameters are those of the checkpoint; the optimizer's next update is its first.
TEST(CheckpointWithoutOptimizer, TheOptimizerBeginsAnew) {
  const SharedFolder folder;
  save_two(folder, false);
  TensorMap loaded_first;
  for (const bool with_optimizer : {true, false}) {
    init(kept_config(2));
    const Ended ended;
    torch::manual_seed(4);
    KeptRun run;
    LoadOptions options;
    options.optimizer = with_optimizer;
    ASSERT_TRUE(load(run.model, run.optimizer, folder.path(), options).has_value());
    run_forward(run);
    const TensorMap parameters = run.model.state_dict();
    if (with_optimizer) {
      loaded_first = parameters;
    }
    for (const auto& [name, tensor] : loaded_first) {
      EXPECT_TRUE(parameters.at(name).equal(tensor)) << name;
    }
    const bool any = !run.optimizer.local_state_dict().parameters.empty();
    EXPECT_EQ(any, with_optimizer && !run.model.local_parameters().empty());
    run.step(2);
    // Adam's first update is the learning rate, whatever the gradient.
    bool all_first = true;
    for (const auto& [name, tensor] : run.model.state_dict()) {
      if (name == "b.weight") {
        const auto moved = (tensor - parameters.at(name)).abs();
        all_first =
            all_first && (moved - 0.01).abs().lt(2e-3).to(torch::kFloat).mean().item<float>() > 0.9;
      }
    }
    EXPECT_EQ(all_first, !with_optimizer);
  }
}

TEST(CheckpointOfTheModelAlone, HasNoOptimizerAndLoadsWithAndWithoutOne) {
  for (const bool full : {false, true}) {
    const SharedFolder folder;
    TensorMap wanted;
    std::string hash;
    {
      init(kept_config(2));
      const Ended ended;
      torch::manual_seed(3);
      const KeptRun run;
      run_forward(run);
      hash = save(run.model, folder.path(), "alone", {.full = full}).state_hash;
      wanted = run.model.state_dict();
    }
    for (const int pp : {1, 2}) {
      init(kept_config(pp));
      const Ended ended;
      torch::manual_seed(4);
      KeptRun run;
      ASSERT_TRUE(load(run.model, folder.path()).has_value());
      run_forward(run);
      EXPECT_EQ(save(run.model, folder.path(), str("again_", pp)).state_hash, hash);
      for (const auto& [name, tensor] : run.model.state_dict()) {
        EXPECT_TRUE(tensor.equal(wanted.at(name))) << name;
      }
      // With an optimizer it has to be said that its state is not asked for.
      LoadOptions options;
      options.tag = "alone";
      EXPECT_THAT(
          error_of<CheckpointError>(
              [&] { load(run.model, run.optimizer, folder.path(), options); }),
          HasSubstr("optimizer"));
      options.optimizer = false;
      EXPECT_TRUE(load(run.model, run.optimizer, folder.path(), options).has_value());
    }
  }
}

TEST(CheckpointThatHalfFits, IsLoadedAsFarAsItDoes) {
  const SharedFolder folder;
  TensorMap saved;
  {
    init(kept_config(2));
    const Ended ended;
    torch::manual_seed(3);
    KeptRun run;
    run.step(0);
    save(run.model, run.optimizer, folder.path(), "one");
    saved = run.model.state_dict();
  }
  init(kept_config(2));
  const Ended ended;
  torch::manual_seed(4);
  struct WiderImpl : torch::nn::Module {
    WiderImpl() {
      a = register_module("a", nn::Linear(kWidth, kWidth));
      b = register_module("b", nn::Linear(kWidth, 2 * kWidth));
      norm = register_module("norm", nn::Linear(2 * kWidth, 1));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return norm(b(a(x)));
    }
    nn::Linear a{nullptr}, b{nullptr}, norm{nullptr};
  };
  const DistributedModel model{std::make_shared<WiderImpl>()};
  LoadOptions options;
  options.strict = false;
  ASSERT_TRUE(load(model, folder.path(), options).has_value());
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  TensorMap before;
  {
    torch::manual_seed(4);
    const WiderImpl same;
    for (const auto& item : same.named_parameters()) {
      before[item.key()] = item.value().detach().clone();
    }
  }
  const torch::NoGradGuard no_grad;
  forward(torch::ones({4, kWidth}));
  const TensorMap got = model.state_dict();
  for (const char* name : {"a.weight", "a.bias"}) {
    EXPECT_TRUE(got.at(name).equal(saved.at(name))) << name;
  }
  for (const char* name : {"b.weight", "b.bias", "norm.weight", "norm.bias"}) {
    EXPECT_TRUE(got.at(name).equal(before.at(name))) << name;
  }
}

/// The same layers by other names; the first one's weight is transposed in the checkpoint.
struct RenamedImpl : torch::nn::Module {
  RenamedImpl() {
    first = register_module("first", nn::Linear(kWidth, kWidth));
    b = register_module("b", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return b(first(x));
  }
  nn::Linear first{nullptr}, b{nullptr};
};
TESSERA_MODULE(Renamed);

TensorMap renamed(TensorMap state) {
  state["first.weight"] = state.at("a.weight").t();
  state["first.bias"] = state.at("a.bias");
  std::erase_if(state, [](const auto& item) {
    return item.first.starts_with("a.") || item.first.starts_with("norm.");
  });
  return state;
}

TEST(TranslatedCheckpoint, IsThatOfTheModelThatReadsIt) {
  const SharedFolder folder;
  TensorMap saved;
  {
    init(kept_config(2));
    const Ended ended;
    torch::manual_seed(3);
    KeptRun run;
    run.step(0);
    save(run.model, run.optimizer, folder.path(), "one");
    saved = renamed(run.model.state_dict());
  }
  for (const int pp : {1, 2}) {
    for (const bool sharded : {false, true}) {
      if (pp == 2 && world_size() == 2 && sharded) {
        continue;
      }
      Config config = placed(pp, 2, {{"b", pp - 1}});
      if (sharded) {
        config.sharded_data_parallel_degree = 2;
        config.sdp_param_persistence_threshold = 0;
      }
      init(config);
      const Ended ended;
      torch::manual_seed(4 + rank());
      DistributedModel model{Renamed()};
      DistributedOptimizer optimizer = sgd(model.parameters());
      LoadOptions options;
      options.optimizer = false;
      options.translate_function = renamed;
      ASSERT_TRUE(load(model, optimizer, folder.path(), options).has_value());
      auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
      {
        const torch::NoGradGuard no_grad;
        forward(torch::ones({4, kWidth}));
      }
      const TensorMap got = model.state_dict();
      ASSERT_EQ(got.size(), saved.size());
      for (const auto& [name, tensor] : saved) {
        EXPECT_TRUE(got.at(name).equal(tensor)) << name << ", pp " << pp;
      }
      // What does not fit is an error on every rank, or passed over.
      options.translate_function = [](TensorMap state) {
        state = renamed(std::move(state));
        state.erase("b.bias");
        state["b.weight"] = torch::zeros({1});
        state["first.bias"] = torch::full({kWidth}, 0.5);
        state["other"] = torch::zeros({1});
        return state;
      };
      EXPECT_THAT(
          error_of<CheckpointError>([&] { load(model, folder.path(), options); }),
          ::testing::AllOf(
              HasSubstr("'b.bias' is missing"),
              HasSubstr("'b.weight' has another shape"),
              HasSubstr("'other' is not in the model")));
      EXPECT_TRUE(model.state_dict().at("first.bias").equal(saved.at("first.bias")));
      options.strict = false;
      load(model, folder.path(), options);
      EXPECT_TRUE(model.state_dict().at("first.bias").equal(torch::full({kWidth}, 0.5)));
      EXPECT_TRUE(model.state_dict().at("b.weight").equal(saved.at("b.weight")));
    }
  }
}

std::string load_error(const std::string& folder, int width, std::string tag) {
  init(kept_config(2));
  const Ended ended;
  KeptRun run(width);
  LoadOptions options;
  options.tag = std::move(tag);
  const std::string text = error_of<CheckpointError>([&] {
    load(run.model, run.optimizer, folder, options);
    run.step(0); // the partition, and with it the loading
  });
  const auto texts = allgather(text);
  EXPECT_EQ(texts, std::vector<std::string>(texts.size(), text));
  return text;
}

TEST(CheckpointOfOtherModel, IsAnErrorOnEveryRank) {
  const SharedFolder folder;
  save_two(folder, false);
  const std::string text = load_error(folder.path(), 2 * kWidth, "two");
  EXPECT_THAT(text, HasSubstr("a.weight"));
  EXPECT_THAT(text, HasSubstr("[8, 8]"));
  EXPECT_THAT(text, HasSubstr("[16, 8]"));
}

TEST(UnreadableCheckpoint, IsNamedOnEveryRankOrPassedOver) {
  const SharedFolder folder;
  save_two(folder, false);
  folder.change([](const fs::path& path) {
    // For root too: a folder in the place of the file.
    for (const auto& entry : fs::directory_iterator(path / "two")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model_0")) {
        fs::remove(entry.path());
        fs::create_directory(entry.path());
        break;
      }
    }
  });
  EXPECT_THAT(
      load_error(folder.path(), kWidth, "two"),
      ::testing::AllOf(HasSubstr("two is torn"), HasSubstr("model_0")));
  init(kept_config(2));
  const Ended ended;
  KeptRun run;
  const auto loaded = load(run.model, run.optimizer, folder.path());
  ASSERT_TRUE(loaded.has_value());
  EXPECT_THAT(loaded->path, HasSubstr("one"));
  if (rank() == 0) { // which chose
    ASSERT_EQ(loaded->warnings.size(), 1U);
    EXPECT_THAT(loaded->warnings[0], HasSubstr("two"));
  }
  run.step(1);
}

TEST(NoCheckpoint, IsNothing) {
  const SharedFolder folder;
  init(kept_config(2));
  const Ended ended;
  KeptRun run;
  EXPECT_FALSE(load(run.model, run.optimizer, folder.path()).has_value());
  run.step(0);
}

} // namespace
} // namespace tessera::testing
