#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(5);
  torch::Device device(torch::kCPU);
  UNet model(3);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::randn({4, 1, 16, 16}).to(device);
    auto masks = torch::randint(3, {4, 16, 16}).to(device);
    optimizer.zero_grad();
    auto output = model->forward(images);
    auto loss = torch::nll_loss2d(torch::log_softmax(output, 1), masks);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::randn({4, 1, 16, 16}).to(device);
  auto output = model->forward(images);
  record::tensor("classes", output.softmax(1));
  record::state(*model);
  return 0;
}
