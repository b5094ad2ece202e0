#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(9);
  BoardNet model(5, 8);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto boards = torch::randint(2, {8, 3, 5, 5}).to(torch::kFloat);
    auto moves = torch::rand({8, 26}).softmax(1);
    auto winners = torch::randint(2, {8}).to(torch::kFloat) * 2 - 1;
    optimizer.zero_grad();
    auto [policy, value] = model->forward(boards);
    auto loss = (value - winners).pow(2).mean() - (moves * policy).sum(1).mean();
    auto penalty = torch::zeros({});
    for (auto& p : model->named_parameters()) {
      if (p.key().find("bias") == std::string::npos) {
        penalty = penalty + p.value().pow(2).sum();
      }
    }
    loss = loss + 1e-2 * penalty;
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto boards = torch::randint(2, {4, 3, 5, 5}).to(torch::kFloat);
  auto [policy, value] = model->forward(boards);
  record::tensor("policy", policy.exp());
  record::tensor("value", value);
  record::state(*model);
  return 0;
}
