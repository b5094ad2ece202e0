// Residual blocks x + W2 gelu(W1 x) under a strategy, beside one process that
// does the same work alone. Run under mpirun with pp * tp * dp processes:
//
//   mpirun -n 2 bench_blocks --pp 2 [--mode fast] [--json]
//   mpirun -n 4 bench_blocks --tp 4 --kind 2d
//   mpirun -n 2 bench_blocks --dp 2 --optimizer adamw --shard-state
//   mpirun -n 2 bench_blocks --dp 2 --sharding 2 [--bucket 1048576] [--memory]
//
// Ranks of a tensor-parallel group share the rows of a microbatch.
// 8 blocks of hidden 512 and inner 2048, 8 microbatches of 64 rows in all, f32,
// SGD, one thread a rank: the work that other libraries were timed with.
//
// Every round times five things, one after the other, so that whatever else the
// machine does meets all of them alike:
//   alone     rank 0 trains the whole model; the others sleep
//   threads   the same with a thread for each core that the ranks take
//   stage     rank 0 trains the largest part of the model; the others sleep
//   together  every rank trains that part, each by itself: what the ranks cost
//             each other through memory and clock without a word exchanged
//   strategy  the step of the library
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/nn/layers/placement.h"
#include "tessera/nn/layers/projection.h"
#include "tessera/nn/replace/replacement_registry.h"
#include "tessera/tessera.h"

#include "bench/blocks/shard_memory.h"
#include "bench/support/measure.h"
#include "bench/support/mode.h"

namespace {

using tessera::bench::milliseconds_of;
using tessera::bench::Summary;
using tessera::bench::summary_of;

constexpr int kBlocks = 8;
constexpr int kHidden = 512;
constexpr int kInner = 2048;
constexpr int kRows = 64; // of a microbatch
constexpr double kLearningRate = 1e-3;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int inner) {
    up = register_module("up", tessera::nn::Linear(kHidden, inner));
    down = register_module("down", tessera::nn::Linear(inner, kHidden));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + down(torch::gelu(up(x)));
  }
  tessera::nn::Linear up{nullptr};
  tessera::nn::Linear down{nullptr};
};
TESSERA_MODULE(Block);

/// The block with its inner features divided over the tensor-parallel ranks;
/// names and layouts of its parameters are the block's.
struct DistributedBlockImpl : tessera::nn::DistributedModule {
  explicit DistributedBlockImpl(const BlockImpl& /*original*/)
      : DistributedBlockImpl(tessera::nn::Role::kAlone) {}
  explicit DistributedBlockImpl(tessera::nn::Role role) : role(role) {
    using Direction = tessera::nn::DistributedProjectionImpl::Direction;
    const tessera::nn::FeatureSplit split{1, kInner, 1};
    up = register_module(
        "up",
        tessera::nn::DistributedProjection(
            Direction::kInto, kHidden, split, tessera::nn::TransformerOptions()));
    down = register_module(
        "down",
        tessera::nn::DistributedProjection(
            Direction::kOutOf, kHidden, split, tessera::nn::TransformerOptions()));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto now = parallel_now();
    if (role == tessera::nn::Role::kPart) {
      return x + down->forward(torch::gelu(up->forward(x, {})), {});
    }
    const auto samples = tessera::nn::samples_of_ranks(now, x.size(0));
    const at::Tensor inside = tessera::nn::enter(now, x.unsqueeze(1), samples);
    const at::Tensor update = down->forward(torch::gelu(up->forward(inside, samples)), samples);
    return tessera::nn::leave(now, inside + update, kHidden, samples).squeeze(1);
  }
  tessera::nn::Role role;
  tessera::nn::DistributedProjection up{nullptr};
  tessera::nn::DistributedProjection down{nullptr};
};
TESSERA_MODULE(DistributedBlock);
TESSERA_TP_REGISTER(Block, DistributedBlock);

struct NetImpl : torch::nn::Module {
  NetImpl(int count, int inner) {
    for (int i = 0; i < count; ++i) {
      blocks->push_back(Block(inner));
    }
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& x) {
    return blocks(x);
  }
  tessera::nn::Sequential blocks;
};
TESSERA_MODULE(Net);

/// All blocks on a mesh of ranks; activations stay on it between them. With
/// one-dimensional distributions they are replaced one by one.
struct DistributedNetImpl : tessera::nn::DistributedModule {
  explicit DistributedNetImpl(const NetImpl& original) {
    if (parallel().distribution != tessera::nn::Distribution::kTwoD) {
      throw tessera::ShapeError("its blocks are replaced one by one");
    }
    for (std::size_t i = 0; i < original.blocks->size(); ++i) {
      blocks->push_back(DistributedBlock(tessera::nn::Role::kPart));
    }
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto now = parallel_now();
    const at::Tensor inside = tessera::nn::enter(now, x.unsqueeze(1), {});
    return tessera::nn::leave(now, blocks(inside), kHidden, {}).squeeze(1);
  }
  tessera::nn::Sequential blocks;
};
TESSERA_MODULE(DistributedNet);
TESSERA_TP_REGISTER(Net, DistributedNet);

struct Settings {
  int pp = 1;
  int tp = 1;
  std::string kind = "speed"; // of tensor parallelism
  int dp = 1;
  int sharding = 1; // degree of sharded data parallelism
  std::int64_t bucket = 500'000'000; // sdp_reduce_bucket_size
  int chunks = 1; // stages of a pipeline rank, in turns
  std::string schedule = "interleaved";
  int microbatches = 8;
  int steps = 5;
  std::string mode = "dynamic";
  bool reproducible = false;
  bool shard_state = false;
  std::string optimizer = "sgd"; // of the strategy's step and of those beside it
  bool memory = false; // bytes in place of times
  bool json = false;
};

struct Batch {
  at::Tensor x;
  at::Tensor y;
};

Batch random_batch(int rows) {
  torch::manual_seed(11);
  return {torch::randn({rows, kHidden}), torch::randn({rows, kHidden})};
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(
    const Settings& settings,
    const std::vector<at::Tensor>& parameters) {
  if (settings.optimizer == "adamw") {
    return std::make_unique<torch::optim::AdamW>(parameters, kLearningRate);
  }
  return std::make_unique<torch::optim::SGD>(parameters, kLearningRate);
}

/// A model of some of the blocks in one process, with libtorch alone.
class Plain {
 public:
  Plain(const Settings& settings, int blocks, int inner)
      : net_(blocks, inner), optimizer_(optimizer_of(settings, net_->parameters())) {}

  void step(const Batch& batch, int microbatches, bool input_gradient) {
    optimizer_->zero_grad();
    const auto rows = batch.x.size(0) / microbatches;
    for (int i = 0; i < microbatches; ++i) {
      at::Tensor x = batch.x.narrow(0, i * rows, rows).detach();
      x.requires_grad_(input_gradient);
      const auto y = batch.y.narrow(0, i * rows, rows);
      (torch::mse_loss(net_(x), y) / microbatches).backward();
    }
    optimizer_->step();
  }

 private:
  Net net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

tessera::Config config_of(const Settings& settings) {
  tessera::Config config;
  config.pipeline_parallel_degree = settings.pp;
  config.tensor_parallel_degree = settings.tp;
  config.tensor_parallel_kind = settings.kind == "2d" ? "2d" : "1d";
  config.ddp = settings.dp * settings.tp > 1;
  config.sharded_data_parallel_degree = settings.sharding;
  if (settings.sharding > 1) {
    config.sdp_reduce_bucket_size = settings.bucket;
  }
  config.optimize = settings.kind == "memory" ? "memory" : "speed";
  config.pipeline = settings.schedule;
  config.microbatches = settings.microbatches / settings.dp;
  config.shard_optimizer_state = settings.shard_state;
  if (settings.pp > 1) {
    tessera::bench::set_mode(config, settings.mode);
    config.reproducible = settings.reproducible;
  }
  if (settings.pp > 1) {
    config.auto_partition = false;
    for (int i = 0; i < kBlocks; ++i) {
      config.partition[tessera::str("blocks.", i)] =
          i * settings.pp * settings.chunks / kBlocks % settings.pp;
    }
    config.default_partition = 0;
  }
  return config;
}

struct Times {
  std::vector<double> alone;
  std::vector<double> threads;
  std::vector<double> stage;
  std::vector<double> together;
  std::vector<double> strategy;
  // Of rank 0, in the order above.
  std::array<std::vector<double>, 5> processor;
  tessera::bench::Traffic traffic; // of the last step
};

Times measure(const Settings& settings) {
  torch::manual_seed(5);
  const auto marked = [&] {
    const tessera::tensor_parallelism scope(settings.tp > 1);
    return Net(kBlocks, kInner);
  };
  tessera::DistributedModel model{marked()};
  tessera::DistributedOptimizer optimizer(optimizer_of(settings, model.parameters()));
  auto train_step = tessera::step([&](at::Tensor x, at::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  const bool first = tessera::rank() == 0;
  const int own_microbatches = settings.microbatches / settings.dp;
  const Batch whole = random_batch(settings.microbatches * kRows);
  // Tensor-parallel ranks bring samples of their own.
  const Batch own = random_batch(own_microbatches * kRows / settings.tp);
  const Batch met = random_batch(own_microbatches * kRows);
  Plain alone(settings, kBlocks, kInner);
  Plain stage(settings, (kBlocks + settings.pp - 1) / settings.pp, kInner / settings.tp);

  // Seen from rank 0, until the last rank is done.
  const auto timed = [&](std::vector<double>& times,
                         std::vector<double>& processor,
                         int round,
                         const std::function<void()>& run) {
    tessera::barrier();
    const double before = tessera::bench::processor_ms();
    const double time = milliseconds_of([&] {
      run();
      tessera::barrier();
    });
    if (round >= 0) {
      times.push_back(time);
      processor.push_back(tessera::bench::processor_ms() - before);
    }
  };
  const auto stage_step = [&] { stage.step(met, own_microbatches, settings.pp > 1); };
  const int cores =
      std::min(tessera::size(), static_cast<int>(std::thread::hardware_concurrency()));
  Times times;
  const int warm_up = tessera::bench::warm_up_of(tessera::config_in_force());
  for (int round = -warm_up; round < settings.steps; ++round) {
    timed(times.alone, times.processor[0], round, [&] {
      if (first) {
        alone.step(whole, settings.microbatches, false);
      }
    });
    timed(times.threads, times.processor[4], round, [&] {
      if (first) {
        torch::set_num_threads(cores);
        alone.step(whole, settings.microbatches, false);
        torch::set_num_threads(1);
      }
    });
    timed(times.stage, times.processor[1], round, [&] {
      if (first) {
        stage_step();
      }
    });
    timed(times.together, times.processor[2], round, stage_step);
    const auto before = tessera::bench::traffic();
    timed(times.strategy, times.processor[3], round, [&] {
      optimizer.zero_grad(/*set_to_none=*/true);
      train_step(own.x, own.y);
      optimizer.step();
    });
    times.traffic = tessera::bench::traffic() - before;
  }
  return times;
}

nlohmann::json to_json(const Summary& summary) {
  return {{"best_ms", summary.best}, {"median_ms", summary.median}};
}

void report(const Settings& settings, const Times& times) {
  const Summary alone = summary_of(times.alone);
  const Summary threads = summary_of(times.threads);
  const Summary stage = summary_of(times.stage);
  const Summary together = summary_of(times.together);
  const Summary strategy = summary_of(times.strategy);
  // A pipeline of n stages cannot use (n - 1) of (m + n - 1) places.
  const int own = settings.microbatches / settings.dp;
  const double bubble = static_cast<double>(own + settings.pp - 1) / own;
  const int largest = (kBlocks + settings.pp - 1) / settings.pp;
  const double share = static_cast<double>(largest) / kBlocks / (settings.dp * settings.tp);
  const double ideal = alone.best * share * bubble;
  const double loaded = together.best * bubble;
  if (settings.json) {
    const nlohmann::json document = {
        {"benchmark", "blocks"},
        {"pp", settings.pp},
        {"tp", settings.tp},
        {"kind", settings.kind},
        {"dp", settings.dp},
        {"sharding", settings.sharding},
        {"schedule", settings.schedule},
        {"mode", settings.mode},
        {"reproducible", settings.reproducible},
        {"shard_optimizer_state", settings.shard_state},
        {"optimizer", settings.optimizer},
        {"messages", times.traffic.messages},
        {"bytes", times.traffic.bytes},
        {"context_switches", times.traffic.switches},
        {"microbatches", settings.microbatches},
        {"one_process", to_json(alone)},
        {"one_process_threads", to_json(threads)},
        {"stage", to_json(stage)},
        {"stage_all_ranks", to_json(together)},
        {"step", to_json(strategy)},
        {"processor_ms_of_rank_0",
         {{"one_process", summary_of(times.processor[0]).best},
          {"stage", summary_of(times.processor[1]).best},
          {"stage_all_ranks", summary_of(times.processor[2]).best},
          {"step", summary_of(times.processor[3]).best}}},
        {"ideal_ms", ideal},
        {"over_ideal", strategy.best / ideal},
        {"over_ideal_of_stage", strategy.best / (stage.best * bubble)},
        {"over_ideal_all_ranks", strategy.best / loaded},
        {"over_one_process", strategy.best / alone.best},
        {"over_threads", strategy.best / threads.best}};
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  const auto line = [&](const char* name, const Summary& summary, int what) {
    const Summary processor = summary_of(times.processor.at(what));
    std::printf("%-34s %9.1f %9.1f %12.1f\n", name, summary.best, summary.median, processor.best);
  };
  std::printf(
      "pp %d, tp %d %s, dp %d, sharding %d, %s, %s, %d microbatches of %d rows\n"
      "%-34s %9s %9s %12s\n",
      settings.pp,
      settings.tp,
      settings.kind.c_str(),
      settings.dp,
      settings.sharding,
      settings.schedule.c_str(),
      settings.mode.c_str(),
      settings.microbatches,
      kRows,
      "milliseconds",
      "best",
      "median",
      "cpu, rank 0");
  line("one process, all blocks", alone, 0);
  line("the same, a thread for each core", threads, 4);
  line("one process, largest part", stage, 1);
  line("every rank its part, no exchange", together, 2);
  line("step", strategy, 3);
  std::printf(
      "a step: %lld messages, %.2f MB, %lld context switches\n",
      static_cast<long long>(times.traffic.messages),
      static_cast<double>(times.traffic.bytes) / 1e6,
      static_cast<long long>(times.traffic.switches));
  std::printf("ideal %.1f ms; step / ideal %.3f\n", ideal, strategy.best / ideal);
  std::printf(
      "step / ideal of the parts run together %.3f; step / one process %.3f; "
      "step / its threads %.3f\n",
      strategy.best / loaded,
      strategy.best / alone.best,
      strategy.best / threads.best);
}

int run(const Settings& settings) {
  tessera::init(config_of(settings));
  const int wanted = settings.pp * settings.tp * settings.dp;
  if (tessera::size() != wanted) {
    throw tessera::ConfigError(tessera::str(
        "pp ",
        settings.pp,
        " x tp ",
        settings.tp,
        " x dp ",
        settings.dp,
        " takes ",
        wanted,
        " ranks; found ",
        tessera::size(),
        ": write mpirun -n ",
        wanted));
  }
  if (kRows % settings.tp != 0) {
    throw tessera::ConfigError(
        tessera::str("--tp is ", settings.tp, "; write a divisor of ", kRows, " rows"));
  }
  if (settings.microbatches % settings.dp != 0) {
    throw tessera::ConfigError(tessera::str(
        "--microbatches is ", settings.microbatches, "; write a multiple of --dp ", settings.dp));
  }
  if (settings.memory) {
    if (settings.pp * settings.tp > 1) {
      throw tessera::ConfigError("--memory is of data parallelism: leave --pp and --tp out");
    }
    const int own = settings.microbatches / settings.dp;
    const Batch batch = random_batch(own * kRows);
    tessera::bench::print(tessera::bench::shard_memory(
        tessera::bench::MemoryCount::install(),
        [] { return Net(kBlocks, kInner); },
        [&](const std::vector<at::Tensor>& list) { return optimizer_of(settings, list); },
        {settings.sharding,
         tessera::config_in_force().sdp_param_persistence_threshold,
         settings.optimizer == "adamw" ? 2 : 0},
        batch.x,
        batch.y,
        own));
    tessera::shutdown();
    return 0;
  }
  const Times times = measure(settings);
  if (tessera::rank() == 0) {
    report(settings, times);
  }
  tessera::shutdown();
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Residual blocks under a strategy, beside one process");
  Settings settings;
  app.add_option("--pp", settings.pp, "pipeline ranks")->check(CLI::Range(1, kBlocks));
  app.add_option("--tp", settings.tp, "tensor-parallel ranks")->check(CLI::PositiveNumber);
  app.add_option("--kind", settings.kind, "of tensor parallelism")
      ->check(CLI::IsMember({"speed", "memory", "2d"}));
  app.add_option("--dp", settings.dp, "data-parallel ranks")->check(CLI::PositiveNumber);
  app.add_option("--sharding", settings.sharding, "degree of sharded data parallelism")
      ->check(CLI::PositiveNumber);
  app.add_option("--chunks", settings.chunks, "stages of a pipeline rank, in turns")
      ->check(CLI::Range(1, kBlocks));
  app.add_option("--bucket", settings.bucket, "sdp_reduce_bucket_size, elements")
      ->check(CLI::PositiveNumber);
  app.add_option("--schedule", settings.schedule, "simple or interleaved");
  app.add_flag("--reproducible", settings.reproducible, "sums in one order");
  app.add_flag("--shard-state", settings.shard_state, "shard_optimizer_state");
  app.add_option("--optimizer", settings.optimizer, "sgd or adamw")
      ->check(CLI::IsMember({"sgd", "adamw"}));
  app.add_option("--mode", settings.mode, "dynamic, static or fast")
      ->check(CLI::IsMember({"dynamic", "static", "fast"}));
  app.add_option("--microbatches", settings.microbatches, "of 64 rows, over all ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "timed rounds")->check(CLI::PositiveNumber);
  app.add_flag("--memory", settings.memory, "bytes of a rank beside their formula, no times");
  app.add_flag("--json", settings.json, "one JSON line in place of the table");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  try {
    return run(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
