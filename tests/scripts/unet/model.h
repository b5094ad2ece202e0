#pragma once

#include <vector>

#include <torch/torch.h>

// A step of the way down or up; `skip` is what was there on the way down.
struct StageImpl : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x, torch::Tensor skip) = 0;
  torch::Tensor activate(torch::Tensor x) {
    return torch::leaky_relu(x, 0.1);
  }
};

struct DownImpl : StageImpl {
  DownImpl(int64_t in, int64_t out)
      : conv(register_module(
            "conv",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)))),
        norm(register_module("norm", torch::nn::GroupNorm(2, out))) {}
  torch::Tensor forward(torch::Tensor x, torch::Tensor) override {
    return activate(norm->forward(conv->forward(torch::max_pool2d(x, 2))));
  }
  torch::nn::Conv2d conv;
  torch::nn::GroupNorm norm;
};
TORCH_MODULE(Down);

struct UpImpl : StageImpl {
  UpImpl(int64_t in, int64_t out)
      : up(register_module(
            "up",
            torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, 2).stride(2)))),
        conv(register_module(
            "conv",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(2 * out, out, 3).padding(1)))) {}
  torch::Tensor forward(torch::Tensor x, torch::Tensor skip) override {
    return activate(conv->forward(torch::cat({skip, up->forward(x)}, 1)));
  }
  torch::nn::ConvTranspose2d up;
  torch::nn::Conv2d conv;
};
TORCH_MODULE(Up);

struct UNetImpl : torch::nn::Module {
  explicit UNetImpl(int64_t classes) {
    stem = register_module("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    int64_t channels = 4;
    for (int i = 0; i < 2; ++i, channels *= 2) {
      Down down(channels, 2 * channels);
      register_module("down" + std::to_string(i), down);
      downs.push_back(down.get());
    }
    for (int i = 0; i < 2; ++i, channels /= 2) {
      Up up(channels, channels / 2);
      register_module("up" + std::to_string(i), up);
      ups.push_back(up.get());
    }
    last = register_module("last", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, classes, 1)));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = stem->forward(x);
    std::vector<torch::Tensor> skips;
    for (StageImpl* down : downs) {
      skips.push_back(x);
      x = down->forward(x, {});
    }
    for (StageImpl* up : ups) {
      x = up->forward(x, skips.back());
      skips.pop_back();
    }
    return last->forward(x);
  }
  torch::nn::Conv2d stem{nullptr}, last{nullptr};
  std::vector<StageImpl*> downs;
  std::vector<StageImpl*> ups;
};
TORCH_MODULE(UNet);
