// How should a model of your own be trained on this cluster? Plans it, prints the plan with its
// reasons, and trains under it: on as many ranks as the cluster has devices.
//   mpirun -n 4 example_06_plan_your_own_model cluster.json
// Without a file the cluster is measured first.
#include <cstdio>
#include <tuple>

#include <torch/torch.h>

#include "tessera/autotune/plan.h"
#include "tessera/tessera.h"

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    wide = register_module("wide", tessera::nn::Linear(64, 256));
    narrow = register_module("narrow", tessera::nn::Linear(256, 64));
  }
  torch::Tensor forward(torch::Tensor x) {
    return x + narrow(torch::gelu(wide(x)));
  }
  tessera::nn::Linear wide{nullptr}, narrow{nullptr};
};
TESSERA_MODULE(Block);

// Children of a Sequential may be placed on any pipeline rank.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", tessera::nn::Linear(2, 64));
    blocks = register_module("blocks", tessera::nn::Sequential(Block(), Block(), Block(), Block()));
    out = register_module("out", tessera::nn::Linear(64, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    return out(blocks(in(x)));
  }
  tessera::nn::Linear in{nullptr}, out{nullptr};
  tessera::nn::Sequential blocks{nullptr};
};
TESSERA_MODULE(Net);

std::tuple<torch::Tensor, torch::Tensor> make_batch(int rows) {
  const auto x = torch::randn({rows, 2});
  return {x, (x.select(1, 0) > 0).to(torch::kLong) + (x.select(1, 1) > 0)};
}

int main(int argc, char** argv) {
  torch::manual_seed(1);
  const auto cluster = argc > 1 ? tessera::load_cluster(argv[1]) : tessera::probe_cluster();
  const auto planned = tessera::plan(
      [] { return Net(); },
      [](Net& net, torch::Tensor x, torch::Tensor y) {
        return torch::cross_entropy_loss(net(x), y);
      },
      make_batch(64), // of all ranks together
      cluster);

  tessera::Config base; // what a plan does not decide
  base.timeout_seconds = 60;
  tessera::init(planned.config(base));
  if (tessera::rank() == 0) {
    std::printf("%s", planned.explanation().c_str());
  }
  tessera::DistributedModel model(Net{});
  tessera::DistributedOptimizer optimizer(
      torch::optim::AdamW(model.parameters(), torch::optim::AdamWOptions(0.01)));
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::cross_entropy_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (int step = 1; step <= 20; ++step) {
    auto [x, y] = make_batch(64);
    x = x.chunk(tessera::data_size())[tessera::data_rank()];
    y = y.chunk(tessera::data_size())[tessera::data_rank()];
    optimizer.zero_grad();
    const double loss = train_step(x, y).reduce_mean().item<double>();
    optimizer.step();
    if (tessera::rank() == 0 && step % 10 == 0) {
      std::printf("step %d loss %.3f, predicted %.6f s\n", step, loss, planned.step_seconds());
    }
  }
}
