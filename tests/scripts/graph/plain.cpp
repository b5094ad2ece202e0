#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(13);
  GraphNet model(5, 10, 3);
  torch::optim::Adagrad optimizer(model->parameters(), torch::optim::AdagradOptions(0.05));
  auto nodes = torch::randn({8, 6, 5});
  auto edges = torch::rand({8, 6, 6});
  auto labels = torch::randint(3, {8});

  model->train();
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    auto output = model->forward(nodes, edges);
    auto loss = torch::cross_entropy_loss(output, labels);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  nodes = torch::randn({8, 6, 5});
  edges = torch::rand({8, 6, 6});
  auto output = model->forward(nodes, edges);
  record::tensor("output", output);
  record::state(*model);
  return 0;
}
