#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(6);
  VisionTransformer model(16, 5);
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.05));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::rand({8, 3, 12, 12});
    auto labels = torch::randint(5, {8});
    optimizer.zero_grad();
    auto logits = model->forward(images);
    auto loss = torch::nn::functional::cross_entropy(logits, labels);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::rand({8, 3, 12, 12});
  auto logits = model->forward(images);
  record::tensor("logits", logits);
  record::state(*model);
  return 0;
}
