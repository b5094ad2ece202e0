#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(8);
  auto model = tessera::distributed(Reader(24, 16, 3)); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.05))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto tokens = torch::randint(24, {8, 6});
    auto labels = torch::randint(3, {8});
    optimizer.zero_grad();
    tokens = tokens.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    labels = labels.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](torch::Tensor tokens, torch::Tensor labels) { // tessera
      auto output = model->forward(tokens);
      auto loss = torch::nn::functional::cross_entropy(output, labels);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(tokens, labels).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto tokens = torch::randint(24, {4, 6});
  auto test_step = tessera::step([&](torch::Tensor tokens) { // tessera
    return model->forward(tokens); // tessera
  }); // tessera
  auto output = test_step(tokens).concat(); // tessera
  record::tensor("output", output);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
