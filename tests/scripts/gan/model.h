#pragma once

#include <torch/torch.h>

struct GeneratorImpl : torch::nn::Module {
  explicit GeneratorImpl(int64_t noise)
      : fc(noise, 32),
        up(torch::nn::ConvTranspose2dOptions(8, 6, 4).stride(2).padding(1).bias(false)),
        norm(2, 6),
        last(torch::nn::Conv2dOptions(6, 1, 3).padding(1)) {
    register_module("fc", fc);
    register_module("up", up);
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(fc->forward(x)).view({-1, 8, 2, 2});
    x = torch::relu(norm->forward(up->forward(x)));
    return torch::tanh(last->forward(x));
  }
  torch::nn::Linear fc;
  torch::nn::ConvTranspose2d up;
  torch::nn::GroupNorm norm;
  torch::nn::Conv2d last;
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : torch::nn::Module {
  DiscriminatorImpl()
      : layers(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).stride(2).padding(1)),
            torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
            torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1)),
            torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
            torch::nn::Flatten(),
            torch::nn::Linear(32, 16),
            torch::nn::Tanh(),
            torch::nn::Linear(16, 1)) {
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::sigmoid(layers->forward(x)).squeeze(1);
  }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Discriminator);
