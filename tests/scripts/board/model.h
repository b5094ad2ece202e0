#pragma once

#include <torch/torch.h>

struct TowerImpl : torch::nn::Module {
  TowerImpl(int64_t in, int64_t out) {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
    norm = register_module("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, out)));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::relu(norm->forward(conv->forward(x)));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::GroupNorm norm{nullptr};
};
TORCH_MODULE(Tower);

struct PolicyHeadImpl : torch::nn::Module {
  PolicyHeadImpl(int64_t channels, int64_t squares) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 2, 1)));
    fc = register_module("fc", torch::nn::Linear(2 * squares, squares + 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::log_softmax(fc->forward(torch::relu(conv->forward(x)).flatten(1)), 1);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(PolicyHead);

struct ValueHeadImpl : torch::nn::Module {
  ValueHeadImpl(int64_t channels, int64_t squares) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 1, 1)));
    fc1 = register_module("fc1", torch::nn::Linear(squares, 16));
    fc2 = register_module("fc2", torch::nn::Linear(16, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv->forward(x)).flatten(1);
    return torch::tanh(fc2->forward(torch::relu(fc1->forward(x)))).squeeze(1);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(ValueHead);

struct BoardNetImpl : torch::nn::Module {
  BoardNetImpl(int64_t size, int64_t channels) {
    tower1 = register_module("tower1", Tower(3, channels));
    tower2 = register_module("tower2", Tower(channels, channels));
    policy = register_module("policy", PolicyHead(channels, size * size));
    value = register_module("value", ValueHead(channels, size * size));
  }
  // Logarithms of the probabilities of moves, and who will win.
  std::pair<torch::Tensor, torch::Tensor> forward(torch::Tensor board) {
    auto x = tower2->forward(tower1->forward(board));
    return {policy->forward(x), value->forward(x)};
  }
  Tower tower1{nullptr}, tower2{nullptr};
  PolicyHead policy{nullptr};
  ValueHead value{nullptr};
};
TORCH_MODULE(BoardNet);
