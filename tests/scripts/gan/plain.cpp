#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main() {
  torch::manual_seed(12);
  Generator generator(6);
  Discriminator discriminator;
  torch::optim::Adam generator_optimizer(
      generator->parameters(), torch::optim::AdamOptions(2e-3).betas({0.5, 0.9}));
  torch::optim::Adam discriminator_optimizer(
      discriminator->parameters(), torch::optim::AdamOptions(2e-3).betas({0.5, 0.9}));

  for (int step = 0; step < 5; ++step) {
    auto real = torch::randn({8, 1, 4, 4}).tanh();
    auto noise = torch::randn({8, 6});

    discriminator->zero_grad();
    auto fake = generator->forward(noise);
    auto on_real = discriminator->forward(real);
    auto d_loss = torch::binary_cross_entropy(on_real, torch::ones_like(on_real));
    auto on_fake = discriminator->forward(fake.detach());
    auto zeros = torch::zeros_like(on_fake);
    d_loss = d_loss + torch::binary_cross_entropy(on_fake, zeros);
    d_loss.backward();
    discriminator_optimizer.step();
    record::loss(d_loss.item<double>());

    generator->zero_grad();
    auto judged = discriminator->forward(generator->forward(noise));
    auto g_loss = torch::binary_cross_entropy(judged, torch::ones_like(judged));
    g_loss.backward();
    generator_optimizer.step();
    record::loss(g_loss.item<double>());
  }

  torch::NoGradGuard no_grad;
  auto noise = torch::randn({8, 6});
  auto images = generator->forward(noise);
  record::tensor("images", images);
  record::state(*generator, "generator.");
  record::state(*discriminator, "discriminator.");
  return 0;
}
