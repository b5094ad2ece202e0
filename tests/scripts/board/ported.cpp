#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(9);
  auto model = tessera::distributed(BoardNet(5, 8)); // tessera
  auto penalty = tessera::over_parameters( // tessera
      model, // tessera
      [](const std::string& name, const torch::Tensor& p) { // tessera
        const bool bias = name.find("bias") != std::string::npos; // tessera
        return bias ? torch::zeros({}) : p.pow(2).sum(); // tessera
      }); // tessera
  tessera::DistributedOptimizer optimizer( // tessera
      torch::optim::SGD( // tessera
          model->parameters(), // tessera
          torch::optim::SGDOptions(0.05).momentum(0.9))); // tessera

  model->train();
  for (int step = 0; step < 5; ++step) {
    auto boards = torch::randint(2, {8, 3, 5, 5}).to(torch::kFloat);
    auto moves = torch::rand({8, 26}).softmax(1);
    auto winners = torch::randint(2, {8}).to(torch::kFloat) * 2 - 1;
    optimizer.zero_grad();
    boards = boards.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    moves = moves.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    winners = winners.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    auto train_step = tessera::step([&](auto boards, auto moves, auto winners) { // tessera
      auto [policy, value] = model->forward(boards);
      auto loss = (value - winners).pow(2).mean() - (moves * policy).sum(1).mean();
      loss = loss + 1e-2 * penalty(); // tessera
      model.backward(loss); // tessera
      return loss; // tessera
    }); // tessera
    auto loss = train_step(boards, moves, winners).reduce_mean(); // tessera
    optimizer.step();
    record::loss(loss.item<double>());
  }

  model->eval();
  torch::NoGradGuard no_grad;
  auto boards = torch::randint(2, {4, 3, 5, 5}).to(torch::kFloat);
  auto test_step = tessera::step([&](torch::Tensor boards) { // tessera
    return model->forward(boards); // tessera
  }); // tessera
  auto [policy, value] = test_step(boards); // tessera
  record::tensor("policy", policy.concat().exp()); // tessera
  record::tensor("value", value.concat()); // tessera
  record::gathered(model.state_dict()); // tessera
  record::owned(model.local_parameters()); // tessera
  return 0;
}
