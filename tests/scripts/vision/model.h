#pragma once

#include <torch/torch.h>

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(int64_t width, int64_t heads) : heads(heads) {
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    proj = register_module("proj", torch::nn::Linear(width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto n = x.size(0), length = x.size(1), width = x.size(2);
    auto parts =
        qkv->forward(x).view({n, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(width / heads);
    auto mixed = torch::matmul(scores.softmax(-1), parts[2]);
    return proj->forward(mixed.transpose(1, 2).reshape({n, length, width}));
  }
  int64_t heads;
  torch::nn::Linear qkv{nullptr}, proj{nullptr};
};
TORCH_MODULE(Attention);

struct EncoderBlockImpl : torch::nn::Module {
  EncoderBlockImpl(int64_t width, int64_t heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    attention = register_module("attention", Attention(width, heads));
    mlp = register_module(
        "mlp",
        torch::nn::Sequential(
            torch::nn::Linear(width, 2 * width),
            torch::nn::GELU(),
            torch::nn::Linear(2 * width, width)));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention->forward(norm1->forward(x));
    return x + mlp->forward(norm2->forward(x));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Attention attention{nullptr};
  torch::nn::Sequential mlp{nullptr};
};
TORCH_MODULE(EncoderBlock);

struct VisionTransformerImpl : torch::nn::Module {
  VisionTransformerImpl(int64_t width, int64_t classes) {
    patches = register_module(
        "patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 4).stride(4)));
    token = register_parameter("token", torch::randn({1, 1, width}) * 0.02);
    position = register_parameter("position", torch::randn({1, 10, width}) * 0.02);
    stages = register_module("stages", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) {
      torch::nn::ModuleList blocks;
      for (int j = 0; j < 2; ++j) {
        blocks->push_back(EncoderBlock(width, 2));
      }
      stages->push_back(blocks);
    }
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head = register_module("head", torch::nn::Linear(width, classes));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = patches->forward(x).flatten(2).transpose(1, 2);
    x = torch::cat({token.expand({x.size(0), -1, -1}), x}, 1) + position;
    for (auto& stage : *stages) {
      for (auto& block : *stage->as<torch::nn::ModuleList>()) {
        x = block->as<EncoderBlock>()->forward(x);
      }
    }
    return head->forward(norm->forward(x).select(1, 0));
  }
  torch::nn::Conv2d patches{nullptr};
  torch::Tensor token, position;
  torch::nn::ModuleList stages{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(VisionTransformer);
