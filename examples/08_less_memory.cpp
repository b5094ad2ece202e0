// Activation checkpointing and offloading: the layers of a Sequential keep their inputs only, and
// those rest in a file until their backward. The same losses as without, to the last digit.
//
//   mpirun -n 2 example_08_less_memory [plain]
#include <cstdio>
#include <cstring>

#include <torch/torch.h>

#include "tessera/tessera.h"

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", tessera::nn::LayerNorm(torch::nn::LayerNormOptions({128})));
    in = register_module("in", tessera::nn::Linear(128, 512));
    out = register_module("out", tessera::nn::Linear(512, 128));
  }
  torch::Tensor forward(torch::Tensor x) {
    return x + torch::dropout(out(torch::gelu(in(norm(x)))), 0.1, is_training());
  }
  tessera::nn::LayerNorm norm{nullptr};
  tessera::nn::Linear in{nullptr}, out{nullptr};
};
TESSERA_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 12; ++i) {
      blocks->push_back(Block());
    }
    register_module("blocks", blocks);
    head = register_module("head", tessera::nn::Linear(128, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    return head(blocks(x));
  }
  tessera::nn::Sequential blocks;
  tessera::nn::Linear head{nullptr};
};
TESSERA_MODULE(Net);

int main(int argc, char** argv) {
  const bool plain = argc > 1 && std::strcmp(argv[1], "plain") == 0;
  tessera::Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 8;
  config.reproducible = true; // so that two runs can be compared digit by digit
  config.offload_activations = !plain;
  tessera::init(config);
  torch::manual_seed(1);
  Net net;
  if (!plain) {
    tessera::set_activation_checkpointing(net->blocks, {.strategy = "group_2"});
  }
  tessera::DistributedModel model(net);
  tessera::DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.05)));
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::cross_entropy_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (int step = 1; step <= 10; ++step) {
    const auto y = torch::randint(10, {512});
    const auto x = torch::randn({512, 128}) + y.unsqueeze(1) * 0.2;
    optimizer.zero_grad();
    const double loss = train_step(x, y).reduce_mean().item<double>();
    optimizer.step();
    if (tessera::rank() == 0) {
      std::printf("step %d loss %.9f\n", step, loss);
    }
  }
}
