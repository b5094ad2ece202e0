// Activation offloading under pipelines, with real files: the same bits, bytes that leave and come
// back, a warning where it can do nothing, and errors of a disk on every rank.
#include <algorithm>
#include <csignal>
#include <filesystem>

#include <sys/resource.h>

#include <gmock/gmock.h>

#include "tessera/context/context.h"
#include "tessera/offload/offloader.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMicrobatches = 8;
constexpr int kRows = 32; // of a microbatch
constexpr int kColumns = 64; // a kept tensor has 8192 bytes

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    linear = register_module("linear", nn::Linear(kColumns, kColumns));
    norm = register_module("norm", nn::BatchNorm1d(kColumns));
  }
  torch::Tensor forward(const torch::Tensor& x) {
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
    return body(x);
  }
  nn::Sequential body;
};
TESSERA_MODULE(Stack);

Stack make_stack(bool recomputes) {
  Stack net(6);
  if (recomputes) {
    set_activation_checkpointing(net->body);
  }
  return net;
}

Config stacked(int pp) {
  std::map<std::string, int> partition;
  for (int i = 0; i < 6; ++i) {
    partition[str("body.", i)] = i * pp / 6;
  }
  Config config = placed(pp, kMicrobatches, partition);
  config.transport_buffer_bytes = 16 << 20;
  return config;
}

int rows() {
  return kMicrobatches * kRows * world_size();
}

std::string warnings(const Config& config, bool recomputes) {
  ::testing::internal::CaptureStderr();
  {
    init(config);
    const Ended ended;
    DistributedModel model(make_stack(recomputes));
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(squared(model(x), y)); });
    const Batch mine = mine_of(random_batches(rows(), kColumns)(0));
    train_step(mine.x, mine.y);
    train_step(mine.x, mine.y);
  }
  return ::testing::internal::GetCapturedStderr();
}

// It stands first: a process in which a module was ever flagged has nothing to warn of.
TEST(Offload, WithoutActivationCheckpointingThereIsAWarning) {
  int mine = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  Config config = stacked(std::min(world_size(), 2));
  config.offload_activations = true;
  const std::string text = warnings(config, false);
  const auto first = text.find("offload_activations has no effect");
  EXPECT_EQ(first != std::string::npos, mine == 0) << text;
  if (mine == 0) {
    EXPECT_EQ(text.find("offload_activations has no effect", first + 1), std::string::npos);
  }
}

/// Steps of a model; what each rank's offloader counted, if it has one.
struct Moved {
  Trained trained;
  std::vector<std::int64_t> out;
  std::vector<std::int64_t> in;
};

Moved train(const Config& config, int steps) {
  init(config);
  const Ended ended;
  Moved moved;
  torch::manual_seed(7);
  DistributedModel model(make_stack(true));
  DistributedOptimizer optimizer = sgd(model.parameters());
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = squared(model(x), y);
    model.backward(loss);
    return loss;
  });
  const MakeBatch batches = random_batches(rows(), kColumns);
  for (int step = 0; step < steps; ++step) {
    const Batch mine = mine_of(batches(step));
    optimizer.zero_grad();
    moved.trained.losses.push_back(train_step(mine.x, mine.y).reduce_mean().item<double>());
    optimizer.step();
  }
  moved.trained.parameters = model.state_dict();
  const auto& offloader = context().offloader;
  moved.out = allgather(offloader == nullptr ? 0 : offloader->counters().copies_out);
  moved.in = allgather(offloader == nullptr ? 0 : offloader->counters().copies_in);
  return moved;
}

TEST(Offload, TheSameBitsAsWithoutIt) {
  for (const int pp : {1, 2, 4}) {
    if (pp > world_size()) {
      continue;
    }
    for (const std::string mode : {"dynamic", "simple", "static", "fast"}) {
      Config config = stacked(pp);
      config.reproducible = true; // else sums depend on timing, with or without offloading
      config.static_mode = mode == "static" || mode == "fast";
      config.static_mode_steps = config.static_mode ? 1 : 5;
      config.fast_mode = mode == "fast";
      if (mode == "simple") {
        config.pipeline = "simple";
      }
      const Moved wanted = train(config, 4);
      for (const int horizon : {1, 4, 100}) {
        config.offload_activations = true;
        config.activation_loading_horizon = horizon;
        const Moved got = train(config, 4);
        const std::string what = str("pp ", pp, ", ", mode, ", horizon ", horizon);
        expect_equal(got.trained, wanted.trained, what, 0);
        // The first step at least moves what its layers keep, and nothing is read in vain.
        // (In fast mode's first step a rank may keep stand-ins, which stay.)
        EXPECT_GT(*std::max_element(got.out.begin(), got.out.end()), 0) << what;
        for (std::size_t i = 0; i < got.out.size(); ++i) {
          EXPECT_LE(got.in[i], got.out[i]) << what;
        }
        config.offload_activations = false;
        config.activation_loading_horizon = 4;
      }
    }
  }
}

TEST(Offload, WhatIsWithinTheHorizonStays) {
  if (world_size() < 2) {
    GTEST_SKIP() << "needs two pipeline ranks";
  }
  // Three layers of eight microbatches each step. With "simple" the backward of a microbatch is
  // eight tasks behind its forward; the first step does not know it yet.
  const int of_step = 3 * kMicrobatches;
  const std::map<int, int> copies = {{4, 3 * of_step}, {7, 3 * of_step}, {8, of_step}};
  for (const auto& [horizon, wanted] : copies) {
    Config config = stacked(2);
    config.pipeline = "simple";
    config.offload_activations = true;
    config.activation_loading_horizon = horizon;
    const Moved moved = train(config, 3);
    EXPECT_EQ(moved.out.front(), wanted) << horizon;
    // What is asked for before its copy out has ended is not read back.
    EXPECT_LE(moved.in.front(), wanted) << horizon;
  }
}

/// What a step throws on this rank, and a second one after `repair`.
std::pair<std::string, std::string> errors_of_steps(
    const Config& config,
    const std::function<void()>& spoil,
    const std::function<void()>& repair) {
  init(config);
  const Ended ended;
  DistributedModel model(make_stack(true));
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(squared(model(x), y)); });
  const Batch mine = mine_of(random_batches(rows(), kColumns)(0));
  const auto run = [&] { return error_of<UserError>([&] { train_step(mine.x, mine.y); }); };
  spoil();
  std::string first = run();
  repair();
  for (const at::Tensor& parameter : model.parameters()) {
    at::Tensor(parameter).mutable_grad() = at::Tensor();
  }
  return {first, run()};
}

TEST(Offload, AFullDiskIsEveryRanksErrorAndTheNextStepRuns) {
  for (const int pp : {1, 2}) {
    if (pp > world_size()) {
      continue;
    }
    Config config = stacked(pp);
    config.offload_activations = true;
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const int full = world_size() - 1;
    const auto [first, second] = errors_of_steps(
        config,
        [&] {
          if (rank() == full) {
            const rlimit limit{4096, before.rlim_max};
            ::setrlimit(RLIMIT_FSIZE, &limit);
          }
        },
        [&] { ::setrlimit(RLIMIT_FSIZE, &before); });
    std::signal(SIGXFSZ, handler);
    EXPECT_THAT(
        first,
        AllOf(
            HasSubstr(str("of rank ", full, " on ")),
            HasSubstr("cannot grow from 0 to 1048576 bytes: File too large"),
            HasSubstr("offload_directory '")));
    EXPECT_EQ(second, "");
  }
}

TEST(Offload, AFolderThatOneRankCannotUseIsEveryRanksError) {
  int mine = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  Config config = stacked(1);
  config.offload_activations = true;
  if (mine == world_size() - 1) {
    config.offload_directory = "/no/such/folder";
  }
  EXPECT_THAT(
      error_of<ConfigError>([&] {
        init(config);
        const Ended ended;
      }),
      AllOf(
          HasSubstr(str("offload_directory: rank ", world_size() - 1, " on ")),
          HasSubstr("cannot make a file in '/no/such/folder'")));
}

TEST(Offload, WhatHelpsNothingIsWarnedOfOnce) {
  int mine = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  if (std::filesystem::is_directory("/dev/shm")) {
    Config config = stacked(1);
    config.offload_activations = true;
    config.offload_directory = "/dev/shm";
    const std::string text = warnings(config, true);
    EXPECT_EQ(text.find("the files of '/dev/shm' are in memory") != std::string::npos, mine == 0)
        << text;
    EXPECT_TRUE(std::filesystem::is_directory("/dev/shm"));
  }
  if (world_size() > 1) {
    Config config = stacked(2);
    config.offload_activations = true;
    config.active_microbatches = 1;
    const std::string text = warnings(config, true);
    EXPECT_EQ(text.find("offload_activations saves little") != std::string::npos, mine == 0);
  }
}

} // namespace
} // namespace tessera::testing
