// The script says where modules go: an encoder on pp rank 0, a decoder on pp
// rank 1, one of its layers back on rank 0. Run on 2 ranks.
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "tessera/tessera.h"

struct DecoderImpl : torch::nn::Module {
  DecoderImpl() {
    hidden = register_module("hidden", tessera::nn::Linear(16, 16));
    {
      const tessera::partition here(0); // the innermost scope wins
      out = register_module("out", tessera::nn::Linear(16, 8));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    return out(torch::relu(hidden(x)));
  }
  tessera::nn::Linear hidden{nullptr}, out{nullptr};
};
TESSERA_MODULE(Decoder);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    encoder = register_module("encoder", tessera::nn::Linear(8, 16));
    const tessera::partition here(1);
    decoder = register_module("decoder", Decoder());
  }
  torch::Tensor forward(torch::Tensor x) {
    return decoder(torch::relu(encoder(x)));
  }
  tessera::nn::Linear encoder{nullptr};
  Decoder decoder{nullptr};
};
TESSERA_MODULE(Net);

int main() {
  tessera::Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 2;
  config.auto_partition = false;
  config.default_partition = 0; // what no scope names
  tessera::init(config);
  torch::manual_seed(1);
  tessera::DistributedModel model(Net{});
  tessera::DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));

  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = torch::mse_loss(model(x), x); // learns to copy
    model.backward(loss);
    return loss;
  });
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    const auto loss = train_step(torch::randn({16, 8})).reduce_mean();
    optimizer.step();
    if (tessera::rank() == 0 && i == 19) {
      std::printf("loss %.4f\n", loss.item<double>());
    }
  }

  std::string mine = tessera::str("pp rank ", tessera::pp_rank(), " owns:");
  for (const auto& [name, tensor] : model.local_parameters()) {
    mine += " " + name;
  }
  for (const std::string& line : tessera::allgather(mine)) {
    if (tessera::rank() == 0) {
      std::printf("%s\n", line.c_str());
    }
  }
}
