// A training script that gets into trouble: fault_program CASE RANK.
// Rank RANK stops in the middle of step 2 and says so, or breaks by itself.
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include <unistd.h>

#include <torch/torch.h>

#include "tessera/tessera.h"

namespace {

std::string g_case;
int g_rank = -1;
int g_step = 0;
int g_calls = 0;

// The test hurts this process while it is here.
void wait_to_be_hurt() {
  const bool second_microbatch = ++g_calls == 2 * g_step + 2;
  if (tessera::rank() != g_rank || g_step != 2 || !second_microbatch) {
    return;
  }
  std::printf("READY %d %d\n", g_rank, ::getpid());
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

bool fails_in_module() {
  return g_case == "module" || g_case == "stack" || g_case == "caught";
}

// An error of libtorch's own in the second microbatch of step 2.
void fail() {
  if (g_step != 2 || ++g_calls != 2) {
    return;
  }
  std::printf("READY %d %d\n", tessera::rank(), ::getpid());
  std::fflush(stdout);
  TORCH_CHECK(false, "planted fault");
}

struct FarImpl : torch::nn::Module {
  FarImpl() {
    layer = register_module("layer", tessera::nn::Linear(4, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (!tessera::is_tracing()) {
      fails_in_module() ? fail() : wait_to_be_hurt();
    }
    return layer(x);
  }
  tessera::nn::Linear layer{nullptr};
};
TESSERA_MODULE(Far);

struct MiddleImpl : torch::nn::Module {
  MiddleImpl() {
    far = register_module("far", Far());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return far(x) + x;
  }
  Far far{nullptr};
};
TESSERA_MODULE(Middle);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    near = register_module("near", tessera::nn::Linear(4, 4));
    middle = register_module("middle", Middle());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return middle(near(x));
  }
  tessera::nn::Linear near{nullptr};
  Middle middle{nullptr};
};
TESSERA_MODULE(Net);

bool ends() {
  return g_case.rfind("end", 0) == 0;
}

tessera::Config config_of(int pp) {
  tessera::Config config;
  config.pipeline_parallel_degree = pp;
  config.ddp = true;
  config.microbatches = 2;
  config.timeout_seconds = ends() ? 300 : 3;
  config.transport_buffer_bytes = 4 << 20;
  if (g_case == "config") {
    config.microbatches = 0;
  }
  if (pp > 1) {
    config.auto_partition = false;
    config.default_partition = 0;
    config.partition = {{"middle", pp == 3 ? 1 : 0}, {"middle.far", pp - 1}};
  }
  return config;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: fault_program CASE RANK PIPELINE_RANKS\n");
    return 2;
  }
  g_case = argv[1];
  g_rank = std::stoi(argv[2]);
  torch::set_num_threads(1);
  if (g_case == "file") {
    tessera::init("missing.json");
  }
  try {
    tessera::init(config_of(std::stoi(argv[3])));
  } catch (const tessera::ConfigError&) {
    return 1; // rank 0 has printed it
  }
  torch::manual_seed(1);
  tessera::DistributedModel model{Net()};
  tessera::DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
  auto train_step = tessera::step([&](torch::Tensor x) {
    if (tessera::pp_size() > 1 && !fails_in_module()) { // else Far runs on this rank as well
      wait_to_be_hurt();
    }
    auto loss = model(x).pow(2).mean();
    model.backward(loss);
    return loss;
  });
  for (g_step = 0; g_step < 1000; ++g_step) {
    if (g_step == 2 && tessera::rank() == g_rank) {
      if (g_case == "throw") {
        std::printf("READY %d %d\n", g_rank, ::getpid());
        std::fflush(stdout);
        throw std::runtime_error("planted fault");
      }
      if (g_case == "leave" || ends()) {
        std::printf("READY %d %d\n", g_rank, ::getpid());
        std::fflush(stdout);
        return ends() ? 0 : 3;
      }
    }
    optimizer.zero_grad();
    try {
      train_step(torch::ones({4, 4}));
    } catch (const tessera::UserError&) {
      if (g_case != "caught") {
        throw;
      }
      optimizer.zero_grad();
      train_step(torch::ones({4, 4}));
      return 0; // the script goes on as if nothing had been
    }
    optimizer.step();
  }
  return 0;
}
