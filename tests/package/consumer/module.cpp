#include "tessera/nn/module/module.h"

#include <cstdio>

#include <torch/nn/modules/linear.h>

struct NetImpl : torch::nn::Module {
  NetImpl() : linear(register_module("linear", torch::nn::Linear(4, 2))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return linear(x);
  }
  torch::nn::Linear linear;
};
TESSERA_MODULE(Net);

int main() {
  Net net;
  const torch::Tensor y = net(torch::ones({3, 4}));
  std::printf("%d rows of %d\n", int(y.size(0)), int(y.size(1)));
}
