// A training script that says where it is and can go on from its newest
// checkpoint: training_program DIRECTORY STEPS PIPELINE_RANKS. Fewer than no
// steps are counted from there.
// Lines: "PHASE <rank> <process> <name> <step>", "LOSS <step> <hexadecimal>",
// "STATE <step> <hash>",
// "RESUMED <path> <step>", "WARNING <text>".
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

#include <torch/torch.h>

#include "tessera/tessera.h"

namespace {

constexpr int kSaveEvery = 2;
constexpr int kWidth = 16;
int g_step = 0;

// Says so and stays a moment, for a signal to come then.
void enter(const char* phase) {
  std::printf("PHASE %d %d %s %d\n", tessera::rank(), ::getpid(), phase, g_step);
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

/// x, and says so on the way back.
struct Marked : torch::autograd::Function<Marked> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    enter("backward");
    return gradients;
  }
};

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
    drop = register_module("drop", torch::nn::Dropout(0.1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (!tessera::is_tracing()) {
      enter("forward");
    }
    return Marked::apply(drop(torch::tanh(linear(x))));
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TESSERA_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", Layer());
    second = register_module("second", Layer());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(first(x));
  }
  Layer first{nullptr}, second{nullptr};
};
TESSERA_MODULE(Net);

tessera::Config config_of(int pp) {
  tessera::Config config;
  config.pipeline_parallel_degree = pp;
  config.ddp = true;
  config.microbatches = 2;
  config.reproducible = true;
  config.timeout_seconds = 8;
  config.transport_buffer_bytes = 4 << 20;
  config.seed = 5;
  if (pp > 1) {
    config.auto_partition = false;
    config.default_partition = 0;
    config.partition = {{"second", pp - 1}};
  }
  return config;
}

void train(const std::string& directory, int steps, int pp) {
  tessera::init(config_of(pp));
  torch::manual_seed(1);
  tessera::DistributedModel model{Net()};
  tessera::DistributedOptimizer optimizer(
      torch::optim::AdamW(model.parameters(), torch::optim::AdamWOptions(0.01)));
  int first = 0;
  if (const auto loaded = tessera::load(model, optimizer, directory)) {
    first = std::stoi(loaded->user_content);
    if (tessera::rank() == 0) {
      std::printf("RESUMED %s %d\n", loaded->path.c_str(), first);
      for (const auto& warning : loaded->warnings) {
        std::printf("WARNING %s\n", warning.c_str());
      }
    }
  }
  if (steps < 0) {
    steps = first - steps;
  }
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (g_step = first; g_step < steps; ++g_step) {
    torch::manual_seed(100 + g_step * tessera::dp_size() + tessera::dp_rank());
    const auto x = torch::randn({4, kWidth});
    optimizer.zero_grad();
    const double loss = train_step(x, x.flip(1)).reduce_mean().item<double>();
    optimizer.step();
    enter("collective");
    double mean = 0;
    for (const double value : tessera::allgather(loss, tessera::Group::kDP)) {
      mean += value / tessera::dp_size();
    }
    if (tessera::rank() == 0) {
      std::printf("LOSS %d %a\n", g_step, mean);
    }
    if ((g_step + 1) % kSaveEvery == 0) {
      enter("save");
      tessera::SaveOptions options;
      options.user_content = std::to_string(g_step + 1);
      const auto saved =
          tessera::save(model, optimizer, directory, "step_" + std::to_string(g_step + 1), options);
      if (tessera::rank() == 0) {
        std::printf("STATE %d %s\n", g_step + 1, saved.state_hash.c_str());
      }
    }
  }
  tessera::shutdown();
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: training_program DIRECTORY STEPS PIPELINE_RANKS\n");
    return 2;
  }
  torch::set_num_threads(1);
  try {
    train(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
