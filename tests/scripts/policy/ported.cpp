#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(14);
  const std::string path = record::scratch("policy.pt");
  auto model = tessera::distributed(QNet(6, 16, 3)); // tessera
  QNet target(6, 16, 3);
  tessera::save_module(model, path); // tessera
  torch::load(target, path);
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::Adam(model->parameters(), torch::optim::AdamOptions(1e-2))); // tessera

  for (int step = 0; step < 5; ++step) {
    auto states = torch::randn({8, 6});
    auto actions = torch::randint(3, {8, 1});
    auto rewards = torch::rand({8});
    auto next_states = torch::randn({8, 6});
    auto best = std::get<0>(target->forward(next_states).max(1)).detach();
    auto expected = rewards + 0.9 * best;
    optimizer.zero_grad();
    states = states.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    actions = actions.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    expected = expected.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](auto states, auto actions, auto expected) { // tessera
      auto chosen = model->forward(states).gather(1, actions).squeeze(1);
      auto loss = torch::smooth_l1_loss(chosen, expected);
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(states, actions, expected).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
    if (step % 2 == 1) {
      tessera::save_module(model, path); // tessera
      torch::load(target, path);
    }
  }

  torch::NoGradGuard no_grad;
  auto states = torch::randn({4, 6});
  auto test_step = tessera::step([&](torch::Tensor states) { // tessera
    return model->forward(states); // tessera
  }); // tessera
  auto values = test_step(states).concat(); // tessera
  record::tensor("values", values);
  record::tensor("target", target->forward(states));
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
