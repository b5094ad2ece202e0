// Matrices and vectors have an optimizer each, of which some ranks hold no parameter.
#include "tests/mpi/mesh_training/support.h"

namespace tessera::testing {
namespace {

constexpr int kUpdates = 3;
constexpr double kMaxNorm = 0.1; // of the gradients of all vectors

std::vector<torch::Tensor> parameters_with(
    const std::vector<torch::Tensor>& parameters,
    bool is_vector) {
  std::vector<torch::Tensor> chosen;
  for (const torch::Tensor& parameter : parameters) {
    if ((parameter.dim() == 1) == is_vector) {
      chosen.push_back(parameter);
    }
  }
  return chosen;
}

torch::optim::AdamW for_matrices(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::AdamW(parameters_with(parameters, false), torch::optim::AdamWOptions(0.01));
}

torch::optim::SGD for_vectors(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(
      parameters_with(parameters, true), torch::optim::SGDOptions(0.5).momentum(0.9));
}

TensorMap trained_plain() {
  torch::manual_seed(7);
  models::Gpt plain = made_gpt();
  std::vector<torch::Tensor> parameters = plain->parameters();
  parameters.pop_back(); // the shared one
  torch::optim::AdamW matrices = for_matrices(parameters);
  torch::optim::SGD vectors = for_vectors(parameters);
  for (int step = 0; step < kUpdates; ++step) {
    const Batch batch = tokens_of(step);
    matrices.zero_grad();
    vectors.zero_grad();
    token_loss(plain(batch.x), batch.y).backward();
    torch::nn::utils::clip_grad_norm_(parameters_with(parameters, true), kMaxNorm);
    matrices.step();
    vectors.step();
  }
  return parameters_of(plain);
}

TEST(MeshOptimizers, RanksWithoutTheirParametersTakePart) {
  const TensorMap wanted = trained_plain();
  std::vector<Layout> layouts = meshes();
  for (const Layout& layout : others()) {
    layouts.push_back(layout);
  }
  for (const Layout& layout : layouts) {
    init(config_of(layout));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model(made_gpt());
    DistributedOptimizer matrices(for_matrices(model.parameters()));
    DistributedOptimizer vectors(for_vectors(model.parameters()));
    auto train_step = token_step(model);
    for (int step = 0; step < kUpdates; ++step) {
      const Batch mine = tokens_here(step);
      matrices.zero_grad();
      vectors.zero_grad();
      train_step(mine.x, mine.y);
      vectors.clip_grad_norm(kMaxNorm);
      matrices.step();
      vectors.step();
    }
    expect_state(model.state_dict(), wanted, layout.text(), 1e-4);
    EXPECT_FALSE(vectors.state_dict().parameters.empty()) << layout.text();
  }
}

} // namespace
} // namespace tessera::testing
