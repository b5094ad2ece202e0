#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(7);
  auto model = tessera::distributed(Translator(20, 16)); // tessera
  for (auto& p : model.net()->named_parameters()) { // tessera
    if (p.value().dim() > 1) {
      torch::nn::init::xavier_uniform_(p.value());
    }
  }
  tessera::DistributedOptimizer optimizer(torch::optim::SGD( // tessera
      model->parameters(), // tessera
      torch::optim::SGDOptions(0.1).momentum(0.9))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto from = torch::randint(1, 20, {8, 7});
    from.slice(1, 5).masked_fill_(torch::rand({8, 1}) < 0.5, 0);
    auto to = torch::randint(1, 20, {8, 6});
    optimizer.zero_grad();
    from = from.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    to = to.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](torch::Tensor from, torch::Tensor to) { // tessera
      auto logits = model->forward(from, to.slice(1, 0, 5));
      auto labels = to.slice(1, 1).reshape(-1);
      auto loss = torch::cross_entropy_loss(logits.reshape({-1, 20}), labels);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(from, to).reduce_mean(); // tessera
    optimizer.clip_grad_norm(1.0); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto from = torch::randint(1, 20, {4, 7});
  auto to = torch::randint(1, 20, {4, 5});
  auto test_step = tessera::step([&](torch::Tensor from, torch::Tensor to) { // tessera
    return model->forward(from, to, true); // tessera
  }); // tessera
  auto scores = test_step(from, to).concat(); // tessera
  record::tensor("scores", scores);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
