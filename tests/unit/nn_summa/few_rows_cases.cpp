// Activations of few rows across the boundary: the weights stay where they lie
// if all ranks bring as many samples, and their panels travel if not.
#include "tessera/base/error.h"
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/projection.h"
#include "tessera/nn/summa/boundary.h"

#include "cases.h"
#include "weights.h"

namespace tessera::nn::summa::cases {

namespace {

constexpr std::int64_t kHidden = 47;
constexpr std::int64_t kVocabulary = 53;

struct Whole {
  explicit Whole(std::int64_t samples) {
    Random random(21);
    x = random.normal({samples, kHidden}).requires_grad_();
    table = random.normal({kVocabulary, kHidden}).requires_grad_();
    weight = random.normal({kHidden, kHidden}).requires_grad_();
    gradient = random.normal({samples, kVocabulary});
    y = at::matmul(at::matmul(x, weight), table.t());
    y.backward(gradient);
  }
  at::Tensor x, table, weight, gradient, y;
};

at::Tensor part_of(const DistributedModule& module, const at::Tensor& full) {
  return take_shard(module.distributed_parameters().at("weight").shard, full);
}

/// A linear layer and a head tied to an embedding, twice, so that weights'
/// gradients are begun and added to; rank i brings samples[i of its row].
void run(const MeshPtr& mesh, std::int64_t in_first_row, std::int64_t in_rest) {
  const std::int64_t q = mesh->rows();
  const std::int64_t r = mesh->columns();
  const auto own = mesh->row() == 0 ? in_first_row : in_rest;
  const std::int64_t before =
      mesh->row() == 0 ? mesh->column() * own
                       : r * in_first_row + ((mesh->row() - 1) * r + mesh->column()) * in_rest;
  const Whole whole(r * (in_first_row + (q - 1) * in_rest));
  const auto mine = [&](const at::Tensor& full) {
    return full.detach().narrow(0, before, own).clone();
  };
  const Blocks hidden(kHidden, mesh->columns());
  const MeshBlocks vocabulary(*mesh, kVocabulary);
  TransformerOptions options;
  options.linear_bias = false;
  auto linear = make_on(mesh, [&] {
    return DistributedProjection(
        DistributedProjectionImpl::Direction::kInto, kHidden, FeatureSplit{1, kHidden, 1}, options);
  });
  auto embedding = make_on(mesh, [&] {
    return DistributedEmbedding(
        DistributedEmbeddingOptions{.num_embeddings = kVocabulary, .embedding_dim = kHidden});
  });
  {
    const at::NoGradGuard no_grad;
    linear->weight.copy_(part_of(*linear, whole.weight.t()));
    embedding->weight.copy_(part_of(*embedding, whole.table));
  }
  const Boundary boundary(mesh, false);
  for (int pass = 1; pass <= 2; ++pass) {
    const at::Tensor x = mine(whole.x).requires_grad_();
    const at::Tensor inside = linear->forward(boundary.enter(x, hidden), {});
    const at::Tensor y = boundary.leave(
        tied_linear(mesh, inside, embedding->weight, vocabulary, kHidden), vocabulary.over_columns);
    y.backward(mine(whole.gradient));
    require_close(y.detach(), mine(whole.y), 1e-5, "result");
    require_close(x.grad(), mine(whole.x.grad()), 1e-5, "gradient of x");
    require_close(
        linear->weight.grad(),
        part_of(*linear, whole.weight.grad().t()) * pass,
        1e-5,
        "gradient of the weight");
    require_close(
        embedding->weight.grad(),
        part_of(*embedding, whole.table.grad()) * pass,
        1e-5,
        "gradient of the table");
  }
}

void few_rows_of_all(const MeshPtr& mesh) {
  const auto before = mesh->group().traffic().bytes.load();
  run(mesh, 1, 1);
  require(
      (mesh->group().traffic().bytes.load() > before) == (mesh->reads_all() && mesh->rows() > 1),
      "what travelled was not told by the memory that ranks share");
}

void more_rows_in_one(const MeshPtr& mesh) {
  if (mesh->rows() == 1) {
    return;
  }
  const auto before = mesh->group().traffic().bytes.load();
  run(mesh, 2, 1);
  require(
      mesh->group().traffic().bytes.load() == before,
      "ranks with other numbers of samples chose for themselves");
}

} // namespace

const std::vector<Case>& few_rows_cases() {
  static const std::vector<Case> cases = {
      {"few_rows_of_all", few_rows_of_all},
      {"more_rows_in_one", more_rows_in_one},
  };
  return cases;
}

} // namespace tessera::nn::summa::cases
