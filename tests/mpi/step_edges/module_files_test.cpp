// Files of torch::save in and out of a partitioned model, copies of it, averages of its weights.
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// torch::load reads no module called `in`, as that of the other tests is.
struct TiedPairImpl : torch::nn::Module {
  TiedPairImpl() {
    first = register_module("first", Projection(torch::Tensor()));
    body = register_module("body", nn::Sequential(Block(), nn::Tanh(), Block()));
    out = register_module("out", Projection(first->weight));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(body(first(x)));
  }
  Projection first{nullptr};
  nn::Sequential body{nullptr};
  Projection out{nullptr};
};
TESSERA_MODULE(TiedPair);

/// Shared parameters, buffers, a module without parameters, a container, a frozen parameter.
struct StoredImpl : torch::nn::Module {
  explicit StoredImpl(int classes = kWidth) {
    tied = register_module("tied", TiedPair());
    act = register_module("act", nn::Tanh());
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
    head = register_module("head", nn::Linear(kWidth, classes));
    scale = register_parameter("scale", torch::randn({kWidth}), /*requires_grad=*/false);
    steps = register_buffer("steps", torch::zeros({}, torch::kLong));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    steps.add_(1);
    return head(norm(act(tied(x))) * scale);
  }
  TiedPair tied{nullptr};
  nn::Tanh act{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Linear head{nullptr};
  torch::Tensor scale, steps;
};
TESSERA_MODULE(Stored);

/// A file name for all ranks; the first of them removes the file.
class SharedFile {
 public:
  explicit SharedFile(const std::string& name) {
    int id = static_cast<int>(::getpid());
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    path_ = fs::temp_directory_path() / str("tessera_module_", id, "_", name);
  }
  ~SharedFile() {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 0) {
      fs::remove(path_);
    }
  }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  std::string path() const {
    return path_.string();
  }
  /// On one rank; the others wait.
  template <typename Write>
  void write(Write run) const {
    if (rank_ == 0) {
      run(path());
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0;
  fs::path path_;
};

Stored plain_net(int seed, int classes = kWidth) {
  torch::manual_seed(seed);
  return Stored(classes);
}

template <typename Net>
TensorMap all_of(const Net& net) {
  TensorMap state;
  for (const auto& item : net->named_parameters()) {
    state[item.key()] = item.value().detach().clone();
  }
  for (const auto& item : net->named_buffers()) {
    state[item.key()] = item.value().clone();
  }
  return state;
}

void expect_same(const TensorMap& got, const TensorMap& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
  }
}

auto training(DistributedModel<Stored>& model) {
  return tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
}

TEST(ModuleFiles, APlainScriptReadsWhatIsSaved) {
  for (const int pp : pipelines()) {
    SCOPED_TRACE(text_of(pp, 2));
    const SharedFile file("saved.pt");
    init(config_of(pp, 2));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{Stored()};
    DistributedOptimizer optimizer = sgd(model.parameters());
    auto train_step = training(model);
    const Batch mine = mine_of(random_batches(16)(0));
    train_step(mine.x, mine.y);
    optimizer.step();
    save_module(model, file.path());
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT_FALSE(fs::exists(file.path() + ".unfinished"));
    Stored plain = plain_net(1);
    torch::load(plain, file.path());
    TensorMap whole = model.state_dict();
    TensorMap read = all_of(plain);
    if (dp_rank() != 0) { // a replica's running statistics are of its own samples
      for (const char* name : {"norm.running_mean", "norm.running_var"}) {
        EXPECT_EQ(read.at(name).sizes(), whole.at(name).sizes());
        read.erase(name);
        whole.erase(name);
      }
    }
    EXPECT_TRUE(read.at("tied.out.weight").equal(whole.at("tied.first.weight")));
    read.erase("tied.out.weight"); // a state has it under its first name
    expect_same(read, whole);
    EXPECT_EQ(read.at("steps").item<int>(), 2);
    EXPECT_FALSE(plain->scale.requires_grad());
    EXPECT_TRUE(plain->head->weight.requires_grad());
  }
}

// torch::load puts 16-bit numbers under f32 parameters without looking at the type.
TEST(ModuleFiles, APlainScriptReadsAModelThatWasMadeNarrow) {
  const SharedFile file("narrow.pt");
  Config config = config_of(pipelines().back(), 1);
  config.bf16 = true;
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Stored()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  model.eval();
  {
    const torch::NoGradGuard no_grad;
    forward(mine_of(random_batches(16)(0)).x);
  }
  save_module(model, file.path());
  Stored plain = plain_net(1);
  torch::load(plain, file.path());
  const TensorMap whole = model.state_dict();
  ASSERT_EQ(whole.at("head.weight").scalar_type(), torch::kBFloat16);
  for (const char* name : {"head.weight", "norm.running_var", "scale"}) {
    EXPECT_TRUE(all_of(plain).at(name).equal(whole.at(name).to(torch::kFloat))) << name;
  }
  load_module(model, file.path());
  EXPECT_TRUE(model.state_dict().at("head.weight").equal(whole.at("head.weight")));
}

TEST(ModuleFiles, WhatAPlainScriptSavedIsTaken) {
  for (const int pp : pipelines()) {
    for (const bool partitioned : {false, true}) {
      SCOPED_TRACE(str(text_of(pp, 2), partitioned ? ", after" : ", before", " the partition"));
      const SharedFile file("plain.pt");
      Stored plain = plain_net(3);
      plain->steps.fill_(40);
      file.write([&](const std::string& path) { torch::save(plain, path); });
      init(config_of(pp, 2));
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{Stored()};
      auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
      const torch::NoGradGuard no_grad;
      model.eval();
      const Batch mine = mine_of(random_batches(16)(0));
      if (partitioned) {
        forward(mine.x);
      }
      load_module(model, file.path());
      const auto out = forward(mine.x).concat();
      plain->eval();
      EXPECT_LE(relative_error(out, plain(mine.x)), 1e-5);
      TensorMap wanted = all_of(plain);
      wanted.erase("tied.out.weight");
      wanted["steps"] = torch::tensor(42); // two microbatches
      expect_same(model.state_dict(), wanted);
    }
  }
}

TEST(ModuleFiles, WhatCannotBeReadOrWrittenIsAnErrorOnEveryRank) {
  init(config_of(pipelines().back(), 1));
  const Ended ended;
  DistributedModel model{Stored()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({4, kWidth});
  if (!model.partitioned()) { // every rank is whole
    const SharedFile early("early.pt");
    save_module(model, early.path());
    Stored plain;
    torch::load(plain, early.path());
    EXPECT_TRUE(torch::equal(plain->head->weight, model.net()->head->weight));
    barrier();
  }
  forward(x);
  EXPECT_THAT(
      error_of<CheckpointError>([&] { save_module(model, "/nonexistent/net.pt"); }),
      HasSubstr("cannot write '/nonexistent/net.pt'"));
  EXPECT_THAT(
      error_of<CheckpointError>([&] { load_module(model, "/nonexistent/net.pt"); }),
      HasSubstr("'/nonexistent/net.pt'"));
  const TensorMap before = model.state_dict();
  {
    const SharedFile text("text.pt");
    text.write([](const std::string& path) { std::ofstream(path) << "not a model"; });
    EXPECT_THAT(
        error_of<CheckpointError>([&] { load_module(model, text.path()); }),
        HasSubstr("cannot take"));
  }
  {
    const SharedFile other("other.pt");
    Stored plain = plain_net(3, /*classes=*/5);
    other.write([&](const std::string& path) { torch::save(plain, path); });
    const std::string error = error_of<CheckpointError>([&] { load_module(model, other.path()); });
    EXPECT_THAT(error, HasSubstr("'head.weight' has shape [5, 8]"));
    EXPECT_THAT(error, HasSubstr("'head.bias' has shape [5]"));
  }
  {
    const SharedFile other("block.pt");
    Block plain;
    other.write([&](const std::string& path) { torch::save(plain, path); });
    const std::string error = error_of<CheckpointError>([&] { load_module(model, other.path()); });
    EXPECT_THAT(error, HasSubstr("'a.weight' is not in the model"));
    EXPECT_THAT(error, HasSubstr("'tied.first.weight' is missing"));
  }
  expect_same(model.state_dict(), before);
}

TEST(ModuleFiles, NamesThatTorchCannotReadAreRefused) {
  const SharedFile file("names.pt");
  init(config_of(pipelines().back(), 1));
  const Ended ended;
  DistributedModel model{Tied()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  const torch::NoGradGuard no_grad;
  forward(torch::ones({4, kWidth}));
  EXPECT_THAT(
      error_of<CheckpointError>([&] { save_module(model, file.path()); }),
      AllOf(HasSubstr("torch::load could not read"), HasSubstr("found 'in'")));
  EXPECT_FALSE(fs::exists(file.path()));
}

TEST(ModelCopy, AnOrdinaryModuleGetsTheWholeState) {
  for (const int pp : pipelines()) {
    SCOPED_TRACE(text_of(pp, 2));
    init(config_of(pp, 2));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{Stored()};
    DistributedOptimizer optimizer = sgd(model.parameters());
    auto train_step = training(model);
    // A target network starts as a copy, before anything is partitioned.
    Stored target = plain_net(1);
    model.copy_to(target);
    Stored average = plain_net(2);
    TensorMap wanted_average;
    const double decay = 0.75;
    for (int step = 0; step < 3; ++step) {
      const Batch mine = mine_of(random_batches(16)(step));
      optimizer.zero_grad();
      if (step == 0) {
        const TensorMap started = all_of(plain_net(7));
        train_step(mine.x, mine.y);
        TensorMap copied = all_of(target);
        EXPECT_TRUE(copied.at("steps").equal(started.at("steps")));
        expect_same(copied, started);
      } else {
        train_step(mine.x, mine.y);
      }
      optimizer.step();
      wanted_average = all_of(average);
      model.copy_to(average, decay);
      for (const auto& [name, tensor] : model.state_dict()) {
        const bool buffer = name == "steps" || name.find("running") != std::string::npos ||
                            name.find("tracked") != std::string::npos;
        at::Tensor& own = wanted_average.at(name);
        own = buffer ? tensor : own.mul_(decay).add_(tensor, 1 - decay);
      }
      wanted_average["tied.out.weight"] = wanted_average.at("tied.first.weight");
      expect_same(all_of(average), wanted_average);
    }
    EXPECT_THAT(error_of<ConfigError>([&] { model.copy_to(average, 1); }), HasSubstr("decay is 1"));
    const std::string error = error_of<CheckpointError>([&] { model.copy_to(plain_net(1, 5)); });
    EXPECT_THAT(
        error, HasSubstr("'head.weight' has shape [5, 8], in the model that is copied [8, 8]"));
    Block other;
    EXPECT_THAT(
        error_of<CheckpointError>([&] { model.copy_to(other); }),
        HasSubstr("'a.weight' is not in the model that is copied"));
    expect_same(all_of(average), wanted_average);
  }
}

} // namespace
} // namespace tessera::testing
