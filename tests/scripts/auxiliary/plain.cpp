#include <torch/torch.h>

#include "model.h"
#include "record.h"

namespace F = torch::nn::functional;

int main() {
  torch::manual_seed(3);
  Net model(5);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({8, 3, 8, 8});
    auto labels = torch::randint(5, {8});
    optimizer.zero_grad();
    Output output = model->forward(images);
    auto loss = F::cross_entropy(output.logits, labels);
    loss = loss + 0.3 * F::cross_entropy(output.aux, labels);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({8, 3, 8, 8});
  auto logits = model->forward(images).logits;
  record::tensor("logits", logits);
  record::state(*model);
  return 0;
}
