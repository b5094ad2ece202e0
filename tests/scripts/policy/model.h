#pragma once

#include <torch/torch.h>

// The value of each action in a state.
struct QNetImpl : torch::nn::Module {
  QNetImpl(int64_t state, int64_t hidden, int64_t actions) {
    fc1 = register_module("fc1", torch::nn::Linear(state, hidden));
    fc2 = register_module("fc2", torch::nn::Linear(hidden, hidden));
    fc3 = register_module("fc3", torch::nn::Linear(hidden, hidden));
    out = register_module("out", torch::nn::Linear(hidden, actions));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(fc1->forward(x));
    x = torch::relu(fc2->forward(x));
    x = torch::relu(fc3->forward(x));
    return out->forward(x);
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr}, out{nullptr};
};
TORCH_MODULE(QNet);
