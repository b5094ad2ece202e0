#pragma once

#include <torch/torch.h>

// Its output is its input with new channels behind.
struct DenseLayerImpl : torch::nn::SequentialImpl {
  DenseLayerImpl(int64_t in, int64_t growth) {
    push_back("norm1", torch::nn::GroupNorm(2, in));
    push_back("relu1", torch::nn::Functional(torch::relu));
    push_back("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 2 * growth, 1).bias(false)));
    push_back("norm2", torch::nn::GroupNorm(2, 2 * growth));
    push_back("relu2", torch::nn::Functional(torch::relu));
    push_back(
        "conv2",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(2 * growth, growth, 3).padding(1).bias(false)));
  }
  torch::Tensor forward(torch::Tensor x) {
    auto features = torch::nn::SequentialImpl::forward(x);
    return torch::cat({x, features}, 1);
  }
};
TORCH_MODULE(DenseLayer);

struct DenseBlockImpl : torch::nn::SequentialImpl {
  DenseBlockImpl(int layers, int64_t in, int64_t growth) {
    for (int i = 0; i < layers; ++i) {
      push_back("layer" + std::to_string(i), DenseLayer(in + i * growth, growth));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::nn::SequentialImpl::forward(x);
  }
};
TORCH_MODULE(DenseBlock);

struct TransitionImpl : torch::nn::SequentialImpl {
  TransitionImpl(int64_t in, int64_t out) {
    push_back("norm", torch::nn::GroupNorm(2, in));
    push_back("relu", torch::nn::Functional(torch::relu));
    push_back("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).bias(false)));
    push_back("pool", torch::nn::Functional([](const torch::Tensor& x) {
                return torch::avg_pool2d(x, 2, 2);
              }));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::nn::SequentialImpl::forward(x);
  }
};
TORCH_MODULE(Transition);

struct DenseNetImpl : torch::nn::Module {
  explicit DenseNetImpl(int64_t classes) {
    const int64_t growth = 6;
    int64_t channels = 12;
    features = torch::nn::Sequential();
    features->push_back(
        "stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, channels, 3).padding(1).bias(false)));
    for (int block = 0; block < 3; ++block) {
      features->push_back("block" + std::to_string(block), DenseBlock(2, channels, growth));
      channels += 2 * growth;
      if (block < 2) {
        features->push_back(
            "transition" + std::to_string(block), Transition(channels, channels / 2));
        channels /= 2;
      }
    }
    classifier = torch::nn::Linear(channels, classes);
    register_module("features", features);
    register_module("classifier", classifier);
  }
  torch::Tensor forward(torch::Tensor x) {
    auto out = torch::relu(features->forward(x));
    out = torch::adaptive_avg_pool2d(out, {1, 1}).view({x.size(0), -1});
    return classifier->forward(out);
  }
  torch::nn::Sequential features{nullptr};
  torch::nn::Linear classifier{nullptr};
};
TORCH_MODULE(DenseNet);
