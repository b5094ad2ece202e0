// What a step gives back: nested results, one StepOutput for each tensor; an
// argument that is not split; an evaluation step. Run on 2 ranks.
#include <cstdio>
#include <tuple>

#include <torch/torch.h>

#include "tessera/tessera.h"

struct NetImpl : torch::nn::Module {
  NetImpl() {
    layers = register_module(
        "layers",
        tessera::nn::Sequential(
            tessera::nn::Linear(4, 32),
            tessera::nn::Tanh(),
            tessera::nn::Dropout(0.1),
            tessera::nn::Linear(32, 3)));
  }
  torch::Tensor forward(torch::Tensor x) {
    return layers(x);
  }
  tessera::nn::Sequential layers{nullptr};
};
TESSERA_MODULE(Net);

// The class of a point is the largest of its first three coordinates.
torch::Tensor classes_of(const torch::Tensor& x) {
  return x.narrow(1, 0, 3).argmax(1);
}

int main() {
  tessera::Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 4;
  tessera::init(config);
  torch::manual_seed(1);
  tessera::DistributedModel model(Net{});
  tessera::DistributedOptimizer optimizer(
      torch::optim::Adam(model.parameters(), torch::optim::AdamOptions(0.02)));

  // The weights have no batch axis: they go whole to every microbatch.
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y, torch::Tensor weight) {
        auto loss = torch::cross_entropy_loss(model(x), y, weight);
        model.backward(loss);
        return loss;
      },
      {.non_split_inputs = {2}});
  model.net()->train();
  for (int i = 0; i < 60; ++i) {
    const auto x = torch::randn({64, 4});
    optimizer.zero_grad();
    train_step(x, classes_of(x), torch::ones(3));
    optimizer.clip_grad_norm(1.0); // over the whole model
    optimizer.step();
  }

  // No backward. Results may be nested in tuples, vectors and maps; a tensor
  // becomes a StepOutput, a number one entry for each microbatch.
  auto eval_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    const auto logits = model(x);
    const auto loss = torch::cross_entropy_loss(logits, y);
    return std::make_tuple(logits, loss, x.size(0));
  });
  model.net()->eval();
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({256, 4});
  const auto [logits, loss, rows] = eval_step(x, classes_of(x));
  const auto best = logits.concat().argmax(1); // [256]
  const auto right = best.eq(classes_of(x)).to(torch::kDouble).mean();
  if (tessera::rank() == 0) {
    std::printf(
        "%zu microbatches of %ld rows, loss %.4f, accuracy %.2f\n",
        rows.size(),
        static_cast<long>(rows[0]),
        loss.reduce_mean().item<double>(),
        right.item<double>());
  }
}
