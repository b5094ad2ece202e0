#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(16);
  torch::Device device(torch::kCPU);
  auto model = tessera::distributed(Net()); // tessera
  model.net()->to(device); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::SGD( // tessera
          model->parameters(), // tessera
          torch::optim::SGDOptions(0.05).momentum(0.5))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto data = torch::rand({8, 1, 18, 18}).to(device);
    auto targets = torch::randint(10, {8}).to(device);
    optimizer.zero_grad();
    data = data.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    targets = targets.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](torch::Tensor data, torch::Tensor targets) { // tessera
      auto output = model->forward(data);
      auto loss = torch::nll_loss(output, targets);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(data, targets).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto data = torch::rand({8, 1, 18, 18}).to(device);
  auto test_step = tessera::step([&](torch::Tensor data) { // tessera
    return model->forward(data); // tessera
  }); // tessera
  auto output = test_step(data).concat(); // tessera
  record::tensor("output", output);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
