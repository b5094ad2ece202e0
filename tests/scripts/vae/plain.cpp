#include <torch/torch.h>

#include "model.h"
#include "record.h"

torch::Tensor loss_function(const Output& output, const torch::Tensor& x) {
  auto reconstruction = torch::binary_cross_entropy(output.reconstruction, x);
  auto divergence =
      -0.5 * (1 + output.log_variance - output.mean.pow(2) - output.log_variance.exp()).mean();
  return reconstruction + divergence;
}

int main() {
  torch::manual_seed(11);
  Vae model(30, 20, 4);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::rand({8, 30});
    optimizer.zero_grad();
    auto output = model->forward(images);
    auto loss = loss_function(output, images);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::rand({8, 30});
  auto output = model->forward(images).reconstruction;
  record::tensor("reconstruction", output);
  record::state(*model);
  return 0;
}
