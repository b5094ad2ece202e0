// Replicas that are not alike: the second takes fewer samples of a step, because its host is
// slower, and is out of data earlier; gradients travel in 16 bits, which the script does itself.
//
//   tessera launch -n 2 -- example_09_unlike_replicas
#include <cstdio>

#include <torch/torch.h>

#include "tessera/tessera.h"

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", tessera::nn::Linear(64, 256));
    head = register_module("head", tessera::nn::Linear(256, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    return head(torch::gelu(hidden(x)));
  }
  tessera::nn::Linear hidden{nullptr}, head{nullptr};
};
TESSERA_MODULE(Net);

/// Half the bytes of an all-reduce: ranks add up numbers of 16 bits.
std::shared_ptr<tessera::comm::Work> average_in_16_bits(
    tessera::data_parallel::GradientBucket& bucket) {
  const torch::Tensor sent = (bucket.buffer * bucket.scale).to(torch::kBFloat16);
  bucket.group.all_reduce(sent);
  bucket.buffer.copy_(sent);
  return nullptr; // the averages are there; nothing to wait for
}

int main() {
  tessera::Config config;
  config.ddp = true; // two replicas on two ranks
  config.microbatches = 2;
  config.replica_samples = {24, 8};
  tessera::init(config);
  torch::manual_seed(1);
  tessera::DistributedModel model{Net()};
  tessera::DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.5)));
  model.register_comm_hook(average_in_16_bits);
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::cross_entropy_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  // What this replica has of data: batches of its own size, and of its own number.
  const auto rows = tessera::data_rows(32);
  const int batches = tessera::data_rank() == 0 ? 30 : 20;
  torch::manual_seed(2 + tessera::data_rank());
  torch::Tensor x, y;
  int taken = 0;
  int steps = 0;
  tessera::Join join(model);
  while (join.next(taken < batches)) {
    if (!join.joined()) { // else the last batch once more, which counts nothing
      y = torch::randint(10, {rows.count});
      x = torch::randn({rows.count, 64}) + torch::one_hot(y, 64) * 3;
      ++taken;
    }
    optimizer.zero_grad();
    const double loss = train_step(x, y).reduce_mean().item<double>();
    optimizer.step();
    // The mean over the samples of the step. A joined replica's loss means nothing.
    const double part = join.joined() ? 0 : loss * tessera::data_weight();
    double sum = 0;
    for (const double one : tessera::allgather(part, tessera::Group::kDP)) {
      sum += one;
    }
    if (++steps % 5 == 0 && tessera::rank() == 0) {
      std::printf("step %d loss %.3f\n", steps, sum / tessera::dp_size());
    }
  }
  model.cpu(); // the whole model on every rank, as an ordinary module
  const double norm = model.net()->hidden->weight.norm().item<double>();
  const auto norms = tessera::allgather(norm, tessera::Group::kWorld);
  if (tessera::rank() == 0) {
    std::printf(
        "%d steps, replica 0 took %d batches; replicas are %s\n",
        steps,
        taken,
        norms.front() == norms.back() ? "equal" : "not equal");
  }
}
