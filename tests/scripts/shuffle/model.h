#pragma once

#include <vector>

#include <torch/torch.h>

inline torch::Tensor shuffle(torch::Tensor x, int64_t groups) {
  const auto n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  return x.view({n, groups, c / groups, h, w}).transpose(1, 2).contiguous().view({n, c, h, w});
}

// One half of the channels goes around, the other through; then they are mixed.
struct UnitImpl : torch::nn::Module {
  explicit UnitImpl(int64_t channels) {
    const auto half = channels / 2;
    branch = torch::nn::Sequential(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(half, half, 1).bias(false)),
        torch::nn::GroupNorm(2, half),
        torch::nn::ReLU(torch::nn::ReLUOptions(true)),
        torch::nn::Conv2d(torch::nn::Conv2dOptions(half, half, 3).padding(1).groups(half)),
        torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.1)));
    register_module("branch", branch);
  }
  torch::Tensor forward(torch::Tensor x) {
    auto parts = x.chunk(2, 1);
    auto out = torch::cat({parts[0], branch->forward(parts[1])}, 1);
    return shuffle(out, 2);
  }
  torch::nn::Sequential branch{nullptr};
};
TORCH_MODULE(Unit);

struct ShuffleNetImpl : torch::nn::Module {
  explicit ShuffleNetImpl(int64_t classes) {
    stem = register_module("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 16, 3)));
    for (int i = 0; i < 4; ++i) {
      units.push_back(register_module("unit" + std::to_string(i), Unit(16)));
    }
    fc = register_module("fc", torch::nn::Linear(32, classes));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = stem->forward(x);
    for (auto& unit : units) {
      x = unit->forward(x);
    }
    auto halves = torch::split(x, 8, 1);
    x = torch::cat({halves[0].amax({2, 3}), halves[1].mean({2, 3}), x.mean({2, 3})}, 1);
    return torch::log_softmax(fc->forward(x), 1);
  }
  torch::nn::Conv2d stem{nullptr};
  std::vector<Unit> units;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ShuffleNet);
