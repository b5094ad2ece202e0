#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(2);
  DenseNet model(6);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(3e-3));
  auto criterion = torch::nn::CrossEntropyLoss();

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::rand({8, 3, 8, 8});
    auto labels = torch::randint(6, {8});
    model->zero_grad();
    auto loss = criterion(model->forward(images), labels);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::rand({8, 3, 8, 8});
  auto scores = model->forward(images);
  record::tensor("scores", scores);
  record::state(*model);
  return 0;
}
