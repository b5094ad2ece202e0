#pragma once

#include <torch/torch.h>

struct RegressionImpl : torch::nn::Module {
  RegressionImpl()
      : hidden1(register_module("hidden1", torch::nn::Linear(2, 8))),
        hidden2(register_module("hidden2", torch::nn::Linear(8, 8))),
        hidden3(register_module("hidden3", torch::nn::Linear(8, 8))),
        output(register_module("output", torch::nn::Linear(8, 1))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(hidden1->forward(x));
    x = torch::tanh(hidden2->forward(x));
    x = torch::tanh(hidden3->forward(x));
    return output->forward(x).squeeze(1);
  }
  torch::nn::Linear hidden1, hidden2, hidden3, output;
};
TORCH_MODULE(Regression);
