// Training stops and goes on under another layout: a checkpoint holds the model, not how it was
// divided. The losses are those of a training that never stopped.
//   mpirun -n 2 example_07_resume_on_another_layout example_07 2 60
//   mpirun -n 4 example_07_resume_on_another_layout example_07 2 100
// Arguments: the folder of the checkpoints, the number of pipeline ranks, the last step. Ranks
// beyond the pipeline become replicas.
#include <cmath>
#include <cstdio>
#include <string>
#include <tuple>

#include <torch/torch.h>

#include "tessera/tessera.h"

struct BlockImpl : torch::nn::Module {
  BlockImpl(int in, int out) {
    linear = register_module("linear", torch::nn::Linear(in, out));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::tanh(linear(x));
  }
  torch::nn::Linear linear{nullptr};
};
TESSERA_MODULE(Block);

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
TESSERA_MODULE(Net);

// Points on three arms of a spiral, and the number of each one's arm. A step's batch depends on its
// number alone, so a resumed training sees the batches that it has not seen yet.
std::tuple<torch::Tensor, torch::Tensor> make_batch(int step, int rows) {
  torch::manual_seed(step);
  const auto arm = torch::randint(3, {rows});
  const auto radius = torch::rand({rows}) * 0.9 + 0.1;
  const auto angle = radius * 4 + arm * (2 * M_PI / 3);
  const auto x = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  return {x, arm};
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s FOLDER PIPELINE_RANKS LAST_STEP\n", argv[0]);
    return 2;
  }
  const std::string folder = argv[1];
  const int last = std::stoi(argv[3]);
  tessera::Config config;
  config.pipeline_parallel_degree = std::stoi(argv[2]);
  config.microbatches = 4;
  config.ddp = true;
  tessera::init(config);
  torch::manual_seed(1);
  tessera::DistributedModel model(Net{});
  tessera::DistributedOptimizer optimizer(
      torch::optim::AdamW(model.parameters(), torch::optim::AdamWOptions(0.01)));

  int done = 0;
  if (const auto loaded = tessera::load(model, optimizer, folder)) {
    done = std::stoi(loaded->user_content);
    if (tessera::rank() == 0) {
      std::fprintf(stderr, "%d ranks resume after step %d\n", tessera::size(), done);
    }
  }

  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::cross_entropy_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (int step = done + 1; step <= last; ++step) {
    auto [x, y] = make_batch(step, 64);
    x = x.chunk(tessera::data_size())[tessera::data_rank()];
    y = y.chunk(tessera::data_size())[tessera::data_rank()];
    optimizer.zero_grad();
    const double mine = train_step(x, y).reduce_mean().item<double>();
    optimizer.step();
    const auto all = tessera::allgather(mine, tessera::Group::kDP);
    if (tessera::rank() == 0 && step % 20 == 0) {
      std::printf("step %d loss %.3f\n", step, torch::tensor(all).mean().item<double>());
    }
  }

  const std::string tag = "step_" + std::to_string(last);
  const auto saved =
      tessera::save(model, optimizer, folder, tag, {.user_content = std::to_string(last)});
  if (tessera::rank() == 0) {
    std::fprintf(stderr, "saved %s, state %s\n", saved.path.c_str(), saved.state_hash.c_str());
  }
}
