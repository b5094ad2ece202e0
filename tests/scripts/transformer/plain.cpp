#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(8);
  Reader model(24, 16, 3);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto tokens = torch::randint(24, {8, 6});
    auto labels = torch::randint(3, {8});
    optimizer.zero_grad();
    auto output = model->forward(tokens);
    auto loss = torch::nn::functional::cross_entropy(output, labels);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto tokens = torch::randint(24, {4, 6});
  auto output = model->forward(tokens);
  record::tensor("output", output);
  record::state(*model);
  return 0;
}
