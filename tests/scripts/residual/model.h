#pragma once

#include <torch/torch.h>

// Two convolutions and a way around them.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        bn1(out),
        conv2(torch::nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        bn2(out) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    if (stride != 1 || in != out) {
      shortcut = torch::nn::Sequential(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)),
          torch::nn::BatchNorm2d(out));
    }
    register_module("shortcut", shortcut);
  }
  torch::Tensor forward(torch::Tensor x) {
    auto out = torch::relu(bn1->forward(conv1->forward(x)));
    out = bn2->forward(conv2->forward(out));
    out += shortcut->is_empty() ? x : shortcut->forward(x);
    return torch::relu(out);
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential shortcut;
};
TORCH_MODULE(Block);

struct ResidualNetImpl : torch::nn::Module {
  explicit ResidualNetImpl(int64_t classes)
      : stem(torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)),
        bn(8),
        layer1(make_layer(8, 8, 1, 2)),
        layer2(make_layer(8, 12, 2, 2)),
        layer3(make_layer(12, 16, 2, 1)),
        fc(16, classes) {
    register_module("stem", stem);
    register_module("bn", bn);
    register_module("layer1", layer1);
    register_module("layer2", layer2);
    register_module("layer3", layer3);
    register_module("fc", fc);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(bn->forward(stem->forward(x)));
    x = layer1->forward(x);
    x = layer2->forward(x);
    x = layer3->forward(x);
    x = torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
    return fc->forward(x);
  }
  static torch::nn::Sequential make_layer(int64_t in, int64_t out, int64_t stride, int blocks) {
    torch::nn::Sequential layers;
    layers->push_back(Block(in, out, stride));
    for (int i = 1; i < blocks; ++i) {
      layers->push_back(Block(out, out, 1));
    }
    return layers;
  }
  torch::nn::Conv2d stem;
  torch::nn::BatchNorm2d bn;
  torch::nn::Sequential layer1, layer2, layer3;
  torch::nn::Linear fc;
};
TORCH_MODULE(ResidualNet);
