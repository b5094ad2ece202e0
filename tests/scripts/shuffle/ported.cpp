#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(4);
  auto model = tessera::distributed(ShuffleNet(4)); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::RMSprop(model->parameters(), torch::optim::RMSpropOptions(1e-3))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({8, 4, 9, 9});
    auto labels = torch::randint(4, {8});
    optimizer.zero_grad();
    images = images.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    labels = labels.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](torch::Tensor images, torch::Tensor labels) { // tessera
      auto loss = torch::nll_loss(model->forward(images), labels);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(images, labels).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({4, 4, 9, 9});
  auto test_step = tessera::step([&](torch::Tensor images) { // tessera
    return model->forward(images); // tessera
  }); // tessera
  auto scores = test_step(images).concat(); // tessera
  record::tensor("scores", scores);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
