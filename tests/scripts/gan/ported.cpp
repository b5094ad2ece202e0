#include <torch/torch.h>

#include "model.h"
#include "record.h"

int main(int, char** argv) { // tessera
  tessera::init(argv[1]); // tessera
  torch::manual_seed(12);
  auto generator = tessera::distributed(Generator(6)); // tessera
  auto discriminator = tessera::distributed(Discriminator()); // tessera
  tessera::DistributedOptimizer generator_optimizer(torch::optim::Adam( // tessera
      generator->parameters(), // tessera
      torch::optim::AdamOptions(2e-3).betas({0.5, 0.9}))); // tessera
  tessera::DistributedOptimizer discriminator_optimizer(torch::optim::Adam( // tessera
      discriminator->parameters(), // tessera
      torch::optim::AdamOptions(2e-3).betas({0.5, 0.9}))); // tessera

  for (int step = 0; step < 5; ++step) {
    auto real = torch::randn({8, 1, 4, 4}).tanh();
    auto noise = torch::randn({8, 6});
    real = real.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera
    noise = noise.chunk(tessera::dp_size())[tessera::dp_rank()]; // tessera

    discriminator_optimizer.zero_grad(); // tessera
    auto discriminator_step = // tessera
        tessera::step([&](torch::Tensor real, torch::Tensor noise) { // tessera
          auto fake = generator->forward(noise);
          auto on_real = discriminator->forward(real);
          auto d_loss = torch::binary_cross_entropy(on_real, torch::ones_like(on_real));
          auto on_fake = discriminator->forward(fake.detach());
          auto zeros = torch::zeros_like(on_fake);
          d_loss = d_loss + torch::binary_cross_entropy(on_fake, zeros);
          discriminator.backward(d_loss); // tessera
          return d_loss; // tessera
        }); // tessera
    auto d_loss = discriminator_step(real, noise).reduce_mean(); // tessera
    discriminator_optimizer.step();
    record::loss(d_loss.item<double>());

    generator_optimizer.zero_grad(); // tessera
    auto generator_step = tessera::step([&](torch::Tensor noise) { // tessera
      auto judged = discriminator->forward(generator->forward(noise));
      auto g_loss = torch::binary_cross_entropy(judged, torch::ones_like(judged));
      generator.backward(g_loss); // tessera
      return g_loss; // tessera
    }); // tessera
    auto g_loss = generator_step(noise).reduce_mean(); // tessera
    generator_optimizer.step();
    record::loss(g_loss.item<double>());
  }

  torch::NoGradGuard no_grad;
  auto noise = torch::randn({8, 6});
  auto test_step = tessera::step([&](torch::Tensor noise) { // tessera
    return generator->forward(noise); // tessera
  }); // tessera
  auto images = test_step(noise).concat(); // tessera
  record::tensor("images", images);
  record::gathered(generator.state_dict(), "generator."); // tessera
  record::owned(generator.local_parameters()); // tessera
  record::gathered(discriminator.state_dict(), "discriminator."); // tessera
  record::owned(discriminator.local_parameters()); // tessera
  return 0;
}
