#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(1);
  torch::Device device(torch::kCPU);
  ResidualNet model(10);
  model->to(device);
  torch::NoGradGuard no_grad_for_init;
  for (auto& p : model->named_parameters()) {
    if (p.value().dim() == 4) {
      torch::nn::init::kaiming_normal_(p.value(), 0, torch::kFanOut, torch::kReLU);
    }
  }
  torch::AutoGradMode grad(true);
  int64_t count = 0;
  for (const auto& p : model->parameters()) {
    count += p.numel();
  }
  std::printf("%d parameters\n", static_cast<int>(count));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({8, 3, 12, 12}).to(device);
    auto labels = torch::randint(10, {8}).to(device);
    optimizer.zero_grad();
    auto output = model->forward(images);
    auto loss = torch::nn::functional::cross_entropy(output, labels);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({4, 3, 12, 12}).to(device);
  auto prediction = model->forward(images).softmax(1);
  record::tensor("prediction", prediction);
  record::state(*model);
  return 0;
}
