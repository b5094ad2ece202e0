// The norm of all gradients counts every block, and every vector of the first mesh row, once.
#include "tests/mpi/mesh_training/support.h"

namespace tessera::testing {
namespace {

TEST(MeshClipping, NormAndStepAreThoseOfOneProcess) {
  const double max_norm = 0.05;
  torch::manual_seed(7);
  models::Gpt plain = made_gpt();
  const Batch batch = tokens_of(0);
  token_loss(plain(batch.x), batch.y).backward();
  std::vector<torch::Tensor> parameters = plain->parameters();
  parameters.pop_back(); // the shared one
  const double wanted = torch::nn::utils::clip_grad_norm_(parameters, max_norm);
  ASSERT_GT(wanted, 2 * max_norm);
  double of_vectors = 0;
  TensorMap expected = parameters_of(plain);
  for (const auto& item : plain->named_parameters()) {
    if (expected.contains(item.key())) {
      expected[item.key()] -= item.value().grad();
      of_vectors += item.value().dim() == 1 ? item.value().grad().pow(2).sum().item<double>() : 0;
    }
  }
  // Counted twice, the vectors alone would be seen.
  ASSERT_GT(of_vectors, 1e-3 * max_norm * max_norm);
  for (const Layout& layout : meshes()) {
    init(config_of(layout));
    const Ended ended;
    torch::manual_seed(dp_rank() == 0 ? 7 : 8);
    DistributedModel model(made_gpt());
    DistributedOptimizer optimizer(
        torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(1.0)));
    auto train_step = token_step(model);
    const Batch mine = tokens_here(0);
    train_step(mine.x, mine.y);
    EXPECT_NEAR(optimizer.clip_grad_norm(1e9), wanted, 1e-5 * wanted) << layout.text();
    EXPECT_NEAR(optimizer.clip_grad_norm(max_norm), wanted, 1e-5 * wanted) << layout.text();
    EXPECT_NEAR(optimizer.clip_grad_norm(1e9), max_norm, 1e-4 * max_norm) << layout.text();
    optimizer.step();
    expect_state(model.state_dict(), expected, layout.text(), 1e-5);
  }
}

} // namespace
} // namespace tessera::testing
