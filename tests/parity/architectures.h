#pragma once

#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "tessera/nn/module/containers.h"

#include "models/bert.h"

/// Small networks of well-known forms that models/ does not have.
namespace tessera::testing {

/// Two 3 x 3 convolutions with batch normalisation beside a shortcut.
/// Source: He et al. 2016, figure 2 and section 3.3, option B.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int in, int out, int stride) {
    const auto conv = [](int from, int to, int size, int step) {
      return nn::Conv2d(
          torch::nn::Conv2dOptions(from, to, size).stride(step).padding(size / 2).bias(false));
    };
    conv1 = register_module("conv1", conv(in, out, 3, stride));
    bn1 = register_module("bn1", nn::BatchNorm2d(out));
    conv2 = register_module("conv2", conv(out, out, 3, 1));
    bn2 = register_module("bn2", nn::BatchNorm2d(out));
    if (in != out || stride != 1) {
      shortcut = register_module(
          "shortcut", nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(h + (shortcut.is_empty() ? x : shortcut(x)));
  }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  nn::Sequential shortcut{nullptr};
};
TESSERA_MODULE(ResidualBlock);

/// Images [B, 3, H, W] -> classes [B, 10].
struct ResidualNetImpl : torch::nn::Module {
  ResidualNetImpl() {
    stem = register_module(
        "stem", nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)));
    norm = register_module("norm", nn::BatchNorm2d(4));
    blocks = register_module(
        "blocks",
        nn::Sequential(ResidualBlock(4, 4, 1), ResidualBlock(4, 8, 2), ResidualBlock(8, 16, 2)));
    classes = register_module("classes", nn::Linear(16, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = blocks(torch::relu(norm(stem(x))));
    return classes(h.mean({2, 3}));
  }
  nn::Conv2d stem{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Sequential blocks{nullptr};
  nn::Linear classes{nullptr};
};
TESSERA_MODULE(ResidualNet);

/// Images [B, 3, H, W] -> [B, width].
struct ImageEncoderImpl : torch::nn::Module {
  explicit ImageEncoderImpl(int width) {
    first = register_module(
        "first", nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1).stride(2)));
    block = register_module("block", ResidualBlock(8, 8, 1));
    out = register_module("out", nn::Linear(8, width));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(block(torch::relu(first(x))).mean({2, 3}));
  }
  nn::Conv2d first{nullptr};
  ResidualBlock block{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(ImageEncoder);

/// Tokens [B, S], mask [B, S] -> [B, width].
struct TextEncoderImpl : torch::nn::Module {
  TextEncoderImpl(const models::BertOptions& options, int width) {
    embedding =
        register_module("embedding", nn::Embedding(options.vocab_size, options.hidden_size));
    body = register_module("body", models::BertEncoder(options));
    out = register_module("out", nn::Linear(options.hidden_size, width));
  }
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& mask) {
    const auto h = body(embedding(ids), models::padding_bias(mask, torch::kFloat));
    const auto weight = mask.to(torch::kFloat).unsqueeze(-1);
    return out((h * weight).sum(1) / weight.sum(1));
  }
  nn::Embedding embedding{nullptr};
  models::BertEncoder body{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(TextEncoder);

/// Similarities of every image with every text of a microbatch, scaled by a
/// learnt temperature. Source: Radford et al. 2021, figure 3.
struct TwoEncodersImpl : torch::nn::Module {
  explicit TwoEncodersImpl(const models::BertOptions& options) {
    image = register_module("image", ImageEncoder(12));
    text = register_module("text", TextEncoder(options, 12));
    temperature = register_parameter("temperature", torch::tensor(1.0F));
  }
  torch::Tensor
  forward(const torch::Tensor& images, const torch::Tensor& ids, const torch::Tensor& mask) {
    const auto unit = [](const torch::Tensor& x) { return x / x.norm(2, {1}, true); };
    const auto a = unit(image(images));
    const auto b = unit(text(ids, mask));
    return temperature.exp() * a.matmul(b.t());
  }
  ImageEncoder image{nullptr};
  TextEncoder text{nullptr};
  torch::Tensor temperature;
};
TESSERA_MODULE(TwoEncoders);

} // namespace tessera::testing
