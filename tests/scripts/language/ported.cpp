#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(10);
  auto model = tessera::distributed(LanguageModel(16, 12)); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.5))); // tessera
  auto zeros = [] { return torch::zeros({1, 8, 12}); };
  std::vector<State> states{{zeros(), zeros()}, {zeros(), zeros()}};
  for (auto& [h, c] : states) { // tessera
    h = h.chunk(tessera::dp_size(), 1)[tessera::dp_rank()]; // tessera
    c = c.chunk(tessera::dp_size(), 1)[tessera::dp_rank()]; // tessera
  } // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto text = torch::randint(16, {7, 8});
    text = text.chunk(tessera::dp_size(), 1)[tessera::dp_rank()]; // tessera
    auto input = text.slice(0, 0, 6);
    auto target = text.slice(0, 1);
    optimizer.zero_grad();
    auto on_axis_1 = tessera::StepOptions{.input_split_axes = {{0, 1}, {1, 1}, {2, 1}}}; // tessera
    auto train = [&](auto input, auto target, auto states) { // tessera
      auto [output, next] = model->forward(input, states);
      auto loss = torch::cross_entropy_loss(output.reshape({-1, 16}), target.reshape(-1));
      model.backward(loss); // tessera
      return std::make_tuple(loss, next); // tessera
    }; // tessera
    auto train_step = tessera::step(train, on_axis_1); // tessera
    auto [losses, next] = train_step(input, target, states); // tessera
    auto loss = losses.reduce_mean(); // tessera
    optimizer.step();
    for (size_t i = 0; i < states.size(); ++i) {
      states[i] = {// tessera
                   torch::cat(std::get<0>(next[i]).outputs(), 1), // tessera
                   torch::cat(std::get<1>(next[i]).outputs(), 1)}; // tessera
    }
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto input = torch::randint(16, {6, 8});
  states = {{zeros(), zeros()}, {zeros(), zeros()}};
  auto on_axis_1 = tessera::StepOptions{.input_split_axes = {{0, 1}, {1, 1}}}; // tessera
  auto test = [&](auto input, auto states) { // tessera
    return model->forward(input, states).first; // tessera
  }; // tessera
  auto test_step = tessera::step(test, on_axis_1); // tessera
  auto output = torch::cat(test_step(input, states).outputs(), 1); // tessera
  record::tensor("output", output);
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
