// The script of 01_before.cpp on 4 ranks: 2 pipeline ranks x 2 data-parallel
// replicas. Lines that differ are marked with //*. It prints the same losses.
#include <cmath>
#include <cstdio>
#include <tuple>

#include <torch/torch.h>

#include "tessera/tessera.h" //*

struct BlockImpl : torch::nn::Module {
  BlockImpl(int in, int out) {
    linear = register_module("linear", torch::nn::Linear(in, out));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::tanh(linear(x));
  }
  torch::nn::Linear linear{nullptr};
};
TESSERA_MODULE(Block); //*

struct NetImpl : torch::nn::Module {
  NetImpl() {
    a = register_module("a", Block(2, 64));
    b = register_module("b", Block(64, 64));
    c = register_module("c", Block(64, 64));
    d = register_module("d", Block(64, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    return d(c(b(a(x)))) * 5;
  }
  Block a{nullptr}, b{nullptr}, c{nullptr}, d{nullptr};
};
TESSERA_MODULE(Net); //*

// Points on three arms, and the number of each one's arm.
std::tuple<torch::Tensor, torch::Tensor> make_batch(int rows) {
  const auto arm = torch::randint(3, {rows});
  const auto radius = torch::rand({rows}) * 0.9 + 0.1;
  const auto angle = radius * 4 + arm * (2 * M_PI / 3);
  const auto x = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  return {x, arm};
}

int main() {
  tessera::Config config; //* or tessera::init("config.json")
  config.pipeline_parallel_degree = 2; //*
  config.microbatches = 4; //*
  config.ddp = true; //*
  tessera::init(config); //*
  torch::manual_seed(1);
  tessera::DistributedModel model(Net{}); //*
  tessera::DistributedOptimizer optimizer(torch::optim::AdamW( //*
      model.parameters(),
      torch::optim::AdamWOptions(0.01))); //*

  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) { //*
    auto loss = torch::cross_entropy_loss(model(x), y);
    model.backward(loss); //*
    return loss; //*
  }); //*
  for (int step = 0; step < 100; ++step) {
    auto [x, y] = make_batch(64);
    x = x.chunk(tessera::data_size())[tessera::data_rank()]; //* my replica's part
    y = y.chunk(tessera::data_size())[tessera::data_rank()]; //*
    optimizer.zero_grad();
    double loss = train_step(x, y).reduce_mean().item<double>(); //*
    optimizer.step();
    if (step % 20 == 19) {
      const auto all = tessera::allgather(loss, tessera::Group::kDP); //*
      loss = torch::tensor(all).mean().item<double>(); //* of all replicas
      if (tessera::rank() == 0) { //*
        std::printf("step %d loss %.3f\n", step + 1, loss);
      }
    }
  }
}
