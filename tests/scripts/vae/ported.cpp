#include <torch/torch.h>

#include "model.h"
#include "record.h"

torch::Tensor loss_function(const Output& output, const torch::Tensor& x) {
  auto reconstruction = torch::binary_cross_entropy(output.reconstruction, x);
  auto divergence =
      -0.5 * (1 + output.log_variance - output.mean.pow(2) - output.log_variance.exp()).mean();
  return reconstruction + divergence;
}

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(11);
  auto model = tessera::distributed(Vae(30, 20, 4)); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::Adam(model->parameters(), torch::optim::AdamOptions(1e-3))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto images = torch::rand({8, 30});
    optimizer.zero_grad();
    auto train_step = tessera::step([&](torch::Tensor images) { // tessera
      auto output = model->forward(images);
      auto loss = loss_function(output, images);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(images).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto images = torch::rand({8, 30});
  auto test_step = tessera::step([&](torch::Tensor images) { // tessera
    return model->forward(images).reconstruction; // tessera
  }); // tessera
  auto output = test_step(images).concat(); // tessera
  record::tensor("reconstruction", output);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
