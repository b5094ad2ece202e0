// An embedding with sparse gradients trains under every degree as in one process: rows travel.
#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

constexpr int kItems = 29;

struct LookUpImpl : torch::nn::Module {
  LookUpImpl() {
    const auto options = torch::nn::EmbeddingOptions(kItems, kWidth).sparse(true);
    {
      const tensor_parallelism marked;
      items = register_module("items", nn::Embedding(options));
    }
    users = register_module("users", nn::Embedding(options));
    out = register_module("out", nn::Linear(kWidth, 1));
  }
  torch::Tensor forward(const torch::Tensor& pairs) {
    return out(torch::tanh(items(pairs.select(1, 0)) * users(pairs.select(1, 1))));
  }
  nn::Embedding items{nullptr}, users{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(LookUp);

Batch pairs_of(int step) {
  torch::manual_seed(300 + step);
  return {torch::randint(0, kItems, {16, 2}), torch::randn({16, 1})};
}

TEST(SparseGradients, OfEmbeddingsUnderEveryDegree) {
  for (const Layout& layout : layouts()) {
    const int pp = layout.pp;
    Config config = placed(pp, kMicrobatches, {{"items", 1 % pp}, {"users", pp - 1}, {"out", 0}});
    config.tensor_parallel_degree = layout.tp;
    const int slices = kMicrobatches * world_size() / pp;
    const auto make = [] { return LookUp(); };
    const auto wanted = train_plain(make, pairs_of, 4, slices);
    expect_equal(train_distributed(config, make, pairs_of, 4), wanted, layout.text());
  }
}

TEST(SparseGradients, AreClippedAndStaySparse) {
  constexpr double kMaxNorm = 0.01;
  torch::manual_seed(7);
  LookUp plain;
  const Batch batch = pairs_of(0);
  torch::mse_loss(plain(batch.x), batch.y).backward();
  double square = 0;
  for (const auto& parameter : plain->parameters()) {
    const auto& gradient = parameter.grad();
    square += (gradient.is_sparse() ? gradient.to_dense() : gradient).pow(2).sum().item<double>();
  }
  init(config_of(Layout{1, 1}));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{LookUp()};
  DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
  });
  const Batch mine = part_of(batch, data_size(), data_rank());
  train_step(mine.x, mine.y);
  const double norm = std::sqrt(square);
  EXPECT_NEAR(optimizer.clip_grad_norm(kMaxNorm), norm, 1e-5 * norm);
  EXPECT_NEAR(optimizer.clip_grad_norm(1), kMaxNorm, 1e-4 * kMaxNorm);
  for (const auto& [name, tensor] : model.local_parameters()) {
    EXPECT_EQ(tensor.grad().is_sparse(), name != "out.weight" && name != "out.bias") << name;
  }
}

} // namespace
} // namespace tessera::testing
