#include <torch/torch.h>

#include "model.h"
#include "record.h"

namespace F = torch::nn::functional;

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(3);
  auto model = tessera::distributed(Net(5)); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({8, 3, 8, 8});
    auto labels = torch::randint(5, {8});
    optimizer.zero_grad();
    images = images.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    labels = labels.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](torch::Tensor images, torch::Tensor labels) { // tessera
      Output output = model->forward(images);
      auto loss = F::cross_entropy(output.logits, labels);
      loss = loss + 0.3 * F::cross_entropy(output.aux, labels);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(images, labels).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({8, 3, 8, 8});
  auto test_step = tessera::step([&](torch::Tensor images) { // tessera
    return model->forward(images).logits; // tessera
  }); // tessera
  auto logits = test_step(images).concat(); // tessera
  record::tensor("logits", logits);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
