#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(6);
  auto model = tessera::distributed(VisionTransformer(16, 5)); // tessera
  tessera::DistributedOptimizer optimizer(torch::optim::SGD( // tessera
      model->parameters(), // tessera
      torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.05))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::rand({8, 3, 12, 12});
    auto labels = torch::randint(5, {8});
    optimizer.zero_grad();
    images = images.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    labels = labels.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](torch::Tensor images, torch::Tensor labels) { // tessera
      auto logits = model->forward(images);
      auto loss = torch::nn::functional::cross_entropy(logits, labels);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(images, labels).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::rand({8, 3, 12, 12});
  auto test_step = tessera::step([&](torch::Tensor images) { // tessera
    return model->forward(images); // tessera
  }); // tessera
  auto logits = test_step(images).concat(); // tessera
  record::tensor("logits", logits);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
