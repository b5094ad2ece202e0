#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(4);
  auto model = ShuffleNet(4);
  torch::optim::RMSprop optimizer(model->parameters(), torch::optim::RMSpropOptions(1e-3));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({8, 4, 9, 9});
    auto labels = torch::randint(4, {8});
    optimizer.zero_grad();
    auto loss = torch::nll_loss(model->forward(images), labels);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({4, 4, 9, 9});
  auto scores = model->forward(images);
  record::tensor("scores", scores);
  record::state(*model);
  return 0;
}
