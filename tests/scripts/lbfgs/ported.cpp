#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(15);
  auto model = tessera::distributed(Regression()); // tessera
  model.net()->to(torch::kDouble); // tessera
  tessera::DistributedOptimizer optimizer(tessera::optim::LBFGS( // tessera
      model->parameters(), // tessera
      torch::optim::LBFGSOptions(0.5).max_iter(4).history_size(5))); // tessera
  auto x = torch::rand({16, 2}, torch::kDouble) * 2 - 1;
  auto y = torch::sin(3 * x.select(1, 0)) * x.select(1, 1);
  x = x.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
  y = y.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera

  for (int step = 0; step < 5; ++step) {
    auto closure = [&] {
      optimizer.zero_grad();
      auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) { // tessera
        auto loss = torch::mse_loss(model->forward(x), y);
        model.backward(loss); // tessera
        return loss;
      }); // tessera
      return train_step(x, y).reduce_mean(); // tessera
    };
    auto loss = optimizer.step(closure);
    record::loss(loss.item<double>());
  }

  torch::NoGradGuard no_grad;
  auto points = torch::rand({8, 2}, torch::kDouble);
  auto test_step = tessera::step([&](torch::Tensor points) { // tessera
    return model->forward(points); // tessera
  }); // tessera
  auto values = test_step(points).concat(); // tessera
  record::tensor("values", values);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
