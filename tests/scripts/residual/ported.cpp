#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(1);
  torch::Device device(torch::kCPU);
  auto model = tessera::distributed(ResidualNet(10)); // tessera
  model.net()->to(device); // tessera
  torch::NoGradGuard no_grad_for_init;
  for (auto& p : model.net()->named_parameters()) { // tessera
    if (p.value().dim() == 4) {
      torch::nn::init::kaiming_normal_(p.value(), 0, torch::kFanOut, torch::kReLU);
    }
  }
  torch::AutoGradMode grad(true);
  int64_t count = 0;
  for (const auto& p : model->parameters()) {
    count += p.numel();
  }
  std::printf("%d parameters\n", static_cast<int>(count));
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::SGD( // tessera
          model->parameters(), // tessera
          torch::optim::SGDOptions(0.05).momentum(0.9))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({8, 3, 12, 12}).to(device);
    auto labels = torch::randint(10, {8}).to(device);
    optimizer.zero_grad();
    auto train_step = tessera::step([&](torch::Tensor images, torch::Tensor labels) { // tessera
      auto output = model->forward(images);
      auto loss = torch::nn::functional::cross_entropy(output, labels);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(images, labels).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({4, 3, 12, 12}).to(device);
  auto test_step = tessera::step([&](torch::Tensor images) { // tessera
    return model->forward(images).softmax(1); // tessera
  }); // tessera
  auto prediction = test_step(images).concat(); // tessera
  record::tensor("prediction", prediction);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
