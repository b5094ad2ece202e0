#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(5);
  torch::Device device(torch::kCPU);
  auto model = tessera::distributed(UNet(3)); // tessera
  model.net()->to(device); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::Adam(model->parameters(), torch::optim::AdamOptions(1e-3))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({4, 1, 16, 16}).to(device);
    auto masks = torch::randint(3, {4, 16, 16}).to(device);
    optimizer.zero_grad();
    images = images.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    masks = masks.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](torch::Tensor images, torch::Tensor masks) { // tessera
      auto output = model->forward(images);
      auto loss = torch::nll_loss2d(torch::log_softmax(output, 1), masks);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(images, masks).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({4, 1, 16, 16}).to(device);
  auto test_step = tessera::step([&](torch::Tensor images) { // tessera
    return model->forward(images); // tessera
  }); // tessera
  auto output = test_step(images).concat(); // tessera
  record::tensor("classes", output.softmax(1));
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
