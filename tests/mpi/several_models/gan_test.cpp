// Two models and two optimizers that train against each other.
#include "tests/mpi/several_models/support.h"

namespace tessera::testing {
namespace {

struct CriticImpl : torch::nn::Module {
  CriticImpl() {
    body = register_module("body", nn::Sequential(Block(), Block(), Block(), Block()));
    score = register_module("score", nn::Linear(kWidth, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return score(body(x));
  }
  nn::Sequential body{nullptr};
  nn::Linear score{nullptr};
};
TESSERA_MODULE(Critic);

torch::Tensor judged(const torch::Tensor& score, bool real) {
  return torch::binary_cross_entropy_with_logits(
      score, real ? torch::ones_like(score) : torch::zeros_like(score));
}

TEST(Gan, TwoStepFunctions) {
  expect_same_as_plain([](auto& lab) {
    auto generator = lab.model(Stack());
    auto critic = lab.model(Critic());
    auto generator_optimizer = lab.sgd(generator.parameters());
    auto critic_optimizer = lab.sgd(critic.parameters());
    for (int step = 0; step < 4; ++step) {
      critic_optimizer.zero_grad();
      lab.run(
          [&](torch::Tensor z, torch::Tensor real) {
            const auto loss =
                judged(critic(real), true) + judged(critic(generator(z).detach()), false);
            critic.backward(loss);
            return loss.detach();
          },
          step);
      critic_optimizer.step();
      // The critic gets gradients here too; its next zero_grad discards them.
      generator_optimizer.zero_grad();
      lab.run(
          [&](torch::Tensor z, torch::Tensor) {
            const auto loss = judged(critic(generator(z)), true);
            generator.backward(loss);
            return loss.detach();
          },
          step);
      generator_optimizer.step();
    }
    lab.keep("generator", generator);
    lab.keep("critic", critic);
  });
}

TEST(Gan, BothInOneStepFunction) {
  expect_same_as_plain([](auto& lab) {
    auto generator = lab.model(Stack());
    auto critic = lab.model(Critic());
    auto generator_optimizer = lab.sgd(generator.parameters());
    auto critic_optimizer = lab.sgd(critic.parameters());
    const auto both = [&](torch::Tensor z, torch::Tensor real) {
      const auto made = generator(z);
      const auto told_apart = judged(critic(real), true) + judged(critic(made.detach()), false);
      critic.backward(told_apart);
      const auto passed = judged(critic(made), true);
      generator.backward(passed);
      return (told_apart + passed).detach();
    };
    for (int step = 0; step < 4; ++step) {
      generator_optimizer.zero_grad();
      critic_optimizer.zero_grad();
      lab.run(both, step);
      lab.number(critic_optimizer.clip_grad_norm(0.5));
      generator_optimizer.step();
      critic_optimizer.step();
    }
    lab.keep("generator", generator);
    lab.keep("critic", critic);
  });
}

// Gradients of a model that a step leaves alone are neither averaged again nor
// counted as a pass.
TEST(Gan, AStepLeavesOtherGradientsAlone) {
  expect_same_as_plain([](auto& lab) {
    ModelOptions twice;
    twice.backward_passes_per_step = 2;
    auto generator = lab.model(Stack(), twice);
    auto critic = lab.model(Critic());
    auto generator_optimizer = lab.sgd(generator.parameters());
    auto critic_optimizer = lab.sgd(critic.parameters());
    const auto imitate = [&](torch::Tensor z, torch::Tensor real) {
      const auto loss = torch::mse_loss(generator(z), real);
      generator.backward(loss);
      return loss.detach();
    };
    const auto judge = [&](torch::Tensor, torch::Tensor real) {
      const auto loss = judged(critic(real), true);
      critic.backward(loss);
      return loss.detach();
    };
    for (int step = 0; step < 3; ++step) {
      generator_optimizer.zero_grad();
      for (int pass = 0; pass < 2; ++pass) {
        lab.run(imitate, 2 * step + pass);
        critic_optimizer.zero_grad();
        lab.run(judge, step);
        critic_optimizer.step();
      }
      generator_optimizer.step();
    }
    lab.keep("generator", generator);
    lab.keep("critic", critic);
  });
}

} // namespace
} // namespace tessera::testing
