#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(13);
  auto model = tessera::distributed(GraphNet(5, 10, 3)); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::Adagrad(model->parameters(), torch::optim::AdagradOptions(0.05))); // tessera
  auto nodes = torch::randn({8, 6, 5});
  auto edges = torch::rand({8, 6, 6});
  auto labels = torch::randint(3, {8});
  nodes = nodes.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
  edges = edges.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
  labels = labels.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    auto train_step = tessera::step( // tessera
        [&](torch::Tensor nodes, torch::Tensor edges, torch::Tensor labels) { // tessera
          auto output = model->forward(nodes, edges);
          auto loss = torch::cross_entropy_loss(output, labels);
          model.backward(loss); // tessera
          return loss; // tessera
        }); // tessera
    auto loss = train_step(nodes, edges, labels).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  nodes = torch::randn({8, 6, 5});
  edges = torch::rand({8, 6, 6});
  auto test_step = tessera::step([&](torch::Tensor nodes, torch::Tensor edges) { // tessera
    return model->forward(nodes, edges); // tessera
  }); // tessera
  auto output = test_step(nodes, edges).concat(); // tessera
  record::tensor("output", output);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
