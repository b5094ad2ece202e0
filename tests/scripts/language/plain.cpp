#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(10);
  LanguageModel model(16, 12);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
  auto zeros = [] { return torch::zeros({1, 8, 12}); };
  std::vector<State> states{{zeros(), zeros()}, {zeros(), zeros()}};

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto text = torch::randint(16, {7, 8});
    auto input = text.slice(0, 0, 6);
    auto target = text.slice(0, 1);
    optimizer.zero_grad();
    auto [output, next] = model->forward(input, states);
    auto loss = torch::cross_entropy_loss(output.reshape({-1, 16}), target.reshape(-1));
    loss.backward();
    optimizer.step();
    for (size_t i = 0; i < states.size(); ++i) {
      states[i] = {std::get<0>(next[i]).detach(), std::get<1>(next[i]).detach()};
    }
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto input = torch::randint(16, {6, 8});
  states = {{zeros(), zeros()}, {zeros(), zeros()}};
  auto output = model->forward(input, states).first;
  record::tensor("output", output);
  record::state(*model);
  return 0;
}
