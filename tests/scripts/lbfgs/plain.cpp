#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(15);
  Regression model;
  model->to(torch::kDouble);
  torch::optim::LBFGS optimizer(
      model->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4).history_size(5));
  auto x = torch::rand({16, 2}, torch::kDouble) * 2 - 1;
  auto y = torch::sin(3 * x.select(1, 0)) * x.select(1, 1);

  for (int step = 0; step < 5; ++step) {
    auto closure = [&] {
      optimizer.zero_grad();
      auto loss = torch::mse_loss(model->forward(x), y);
      loss.backward();
      return loss;
    };
    auto loss = optimizer.step(closure);
    record::loss(loss.item<double>());
  }

  torch::NoGradGuard no_grad;
  auto points = torch::rand({8, 2}, torch::kDouble);
  auto values = model->forward(points);
  record::tensor("values", values);
  record::state(*model);
  return 0;
}
