// A plain libtorch script in one process: a small network learns to tell the
// arms of a spiral apart. 02_after.cpp is the same script with Tessera.
#include <cmath>
#include <cstdio>
#include <tuple>

#include <torch/torch.h>

struct BlockImpl : torch::nn::Module {
  BlockImpl(int in, int out) {
    linear = register_module("linear", torch::nn::Linear(in, out));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::tanh(linear(x));
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    a = register_module("a", Block(2, 64));
    b = register_module("b", Block(64, 64));
    c = register_module("c", Block(64, 64));
    d = register_module("d", Block(64, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    return d(c(b(a(x)))) * 5;
  }
  Block a{nullptr}, b{nullptr}, c{nullptr}, d{nullptr};
};
TORCH_MODULE(Net);

// Points on three arms, and the number of each one's arm.
std::tuple<torch::Tensor, torch::Tensor> make_batch(int rows) {
  const auto arm = torch::randint(3, {rows});
  const auto radius = torch::rand({rows}) * 0.9 + 0.1;
  const auto angle = radius * 4 + arm * (2 * M_PI / 3);
  const auto x = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  return {x, arm};
}

int main() {
  torch::manual_seed(1);
  Net model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));

  for (int step = 0; step < 100; ++step) {
    const auto [x, y] = make_batch(64);
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(model(x), y);
    loss.backward();
    optimizer.step();
    if (step % 20 == 19) {
      std::printf("step %d loss %.3f\n", step + 1, loss.item<double>());
    }
  }
}
