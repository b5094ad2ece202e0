#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(14);
  const std::string path = record::scratch("policy.pt");
  QNet model(6, 16, 3);
  QNet target(6, 16, 3);
  torch::save(model, path);
  torch::load(target, path);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));

  for (int step = 0; step < 5; ++step) {
    auto states = torch::randn({8, 6});
    auto actions = torch::randint(3, {8, 1});
    auto rewards = torch::rand({8});
    auto next_states = torch::randn({8, 6});
    auto best = std::get<0>(target->forward(next_states).max(1)).detach();
    auto expected = rewards + 0.9 * best;
    optimizer.zero_grad();
    auto chosen = model->forward(states).gather(1, actions).squeeze(1);
    auto loss = torch::smooth_l1_loss(chosen, expected);
    loss.backward();
    optimizer.step();
    record::loss(loss.item<double>());
    if (step % 2 == 1) {
      torch::save(model, path);
      torch::load(target, path);
    }
  }

  torch::NoGradGuard no_grad;
  auto states = torch::randn({4, 6});
  auto values = model->forward(states);
  record::tensor("values", values);
  record::tensor("target", target->forward(states));
  record::state(*model);
  return 0;
}
