#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(7);
  Translator model(20, 16);
  for (auto& p : model->named_parameters()) {
    if (p.value().dim() > 1) {
      torch::nn::init::xavier_uniform_(p.value());
    }
  }
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto from = torch::randint(1, 20, {8, 7});
    from.slice(1, 5).masked_fill_(torch::rand({8, 1}) < 0.5, 0);
    auto to = torch::randint(1, 20, {8, 6});
    optimizer.zero_grad();
    auto logits = model->forward(from, to.slice(1, 0, 5));
    auto labels = to.slice(1, 1).reshape(-1);
    auto loss = torch::cross_entropy_loss(logits.reshape({-1, 20}), labels);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto from = torch::randint(1, 20, {4, 7});
  auto to = torch::randint(1, 20, {4, 5});
  auto scores = model->forward(from, to, true);
  record::tensor("scores", scores);
  record::state(*model);
  return 0;
}
