#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(16);
  torch::Device device(torch::kCPU);
  Net model;
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto data = torch::rand({8, 1, 18, 18}).to(device);
    auto targets = torch::randint(10, {8}).to(device);
    optimizer.zero_grad();
    auto output = model->forward(data);
    auto loss = torch::nll_loss(output, targets);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto data = torch::rand({8, 1, 18, 18}).to(device);
  auto output = model->forward(data);
  record::tensor("output", output);
  record::state(*model);
  return 0;
}
