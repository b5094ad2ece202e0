// Counted traffic of a layer against Table 1 of Xu et al. 2021, p = 4, 9, 16,
// and against the same terms on meshes that are no squares.
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/managed/managed_stack.h"

#include "bench/support/megatron_stem.h"
#include "cases.h"
#include "mesh_ranks.h"
#include "weights.h"

namespace tessera::nn::summa {
namespace {

constexpr std::int64_t kPositions = 3; // s
constexpr double kFloatBytes = 4;

/// Scalars that left ranks through these groups, all ranks of the mesh
/// together.
double total_scalars(comm::ProcessGroup& all, std::initializer_list<comm::ProcessGroup*> groups) {
  at::Tensor sum = at::zeros({1}, at::kLong);
  for (comm::ProcessGroup* group : groups) {
    sum += group->traffic().bytes.load();
  }
  all.all_reduce(sum);
  return static_cast<double>(sum.item<std::int64_t>()) / kFloatBytes;
}

void require_equal(double found, double expected, const std::string& what) {
  cases::require(
      std::abs(found - expected) < 0.5,
      tessera::str(what, ": counted ", found, ", the formula says ", expected));
}

/// The paper charges a broadcast or reduction of B scalars among q ranks with
/// log2(q) B; the counters say what leaves ranks, (q - 1) B over its line. So
/// the counters of all ranks together, times this, are one rank's scalars in
/// the paper's model: each of q lines carries a q-th of the blocks.
double model_factor(double q) {
  return std::log2(q) / (q * (q - 1));
}

void optimus(const MeshPtr& mesh) {
  const double q = mesh->rows();
  const double r = mesh->columns();
  const std::int64_t columns = mesh->columns();
  const TransformerOptions options = cases::layer_options(4 * columns, columns);
  const double b = 2 * q;
  const double s = kPositions;
  const double h = static_cast<double>(options.hidden_size);
  std::vector<DistributedTransformerLayer> layers = {
      cases::make_on(mesh, [&] { return cases::layer_on_mesh(options); })};
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : layers[0]->parameters()) {
      parameter.fill_(0.1);
    }
  }
  // Table 1 counts the whole forward again in the backward.
  managed::Savings savings;
  savings.skip_products = false;
  managed::ManagedStack stem(layers, savings);
  const at::Tensor x = at::ones({2, kPositions, options.hidden_size / columns});
  const auto counted = [&] {
    return total_scalars(mesh->group(), {&mesh->row_group(), &mesh->column_group()});
  };

  const double start = counted();
  stem.forward(x);
  const double forward = counted() - start;
  // What the paper leaves out as negligible: biases (9 h) and norms (2 h each)
  // from row 0, moments along rows (2 numbers a position from each rank).
  const double small_forward = (q - 1) * (9 * h + 2 * 2 * h) + 2 * r * (r - 1) * 2 * b * s;
  const double activations = 7 * b * s * h;
  const double weights = 12 * h * h;
  require_equal(forward - small_forward, (r - 1) * activations + (q - 1) * weights, "forward");

  stem.backward(at::ones_like(x));
  const double backward = counted() - start - forward;
  // The forward's again; gradients of the same to row 0; two sums a position,
  // all-reduced along rows.
  const double small_backward =
      small_forward + (q - 1) * (9 * h + 2 * 2 * h) + 2 * (2 * (r - 1) * 2 * b * s);
  require_equal(
      backward - small_backward, 3 * ((r - 1) * activations + (q - 1) * weights), "backward");
  if (mesh->rows() == mesh->columns()) {
    const double p = q * r;
    const double table = std::log2(p) / (2 * std::sqrt(p));
    require_equal(
        (forward - small_forward) * model_factor(q),
        table * (7 * b * s * h + 12 * h * h),
        "Table 1, forward");
    require_equal(
        (backward - small_backward) * model_factor(q),
        table * (21 * b * s * h + 36 * h * h),
        "Table 1, backward");
  }
}

void megatron(comm::ProcessGroup& group) {
  const double p = group.size();
  const auto ranks = static_cast<std::int64_t>(group.size());
  const std::int64_t hidden = 4 * ranks;
  bench::MegatronStem stem(group, 1, hidden, ranks);
  const at::Tensor x = torch::ones({ranks, kPositions, hidden});
  const double b = p;
  const double s = kPositions;
  const double h = static_cast<double>(hidden);
  const auto counted = [&] {
    return static_cast<double>(group.traffic().bytes.load()) / kFloatBytes;
  };
  const double start = counted();
  const at::Tensor y = stem.forward(x);
  const double forward = counted() - start;
  require_equal(forward, 4 * (p - 1) / p * b * s * h, "Megatron, forward");
  stem.backward(torch::ones_like(y));
  const double gathered = (p - 1) * b * s * h / p; // the checkpoint
  require_equal(
      counted() - start - forward - gathered, 8 * (p - 1) / p * b * s * h, "Megatron, backward");
}

class Table1 : public ::testing::TestWithParam<int> {};

TEST_P(Table1, OptimusInSharedMemory) {
  EXPECT_EQ(run_on_mesh(GetParam(), {}, optimus), "");
}

TEST_P(Table1, OptimusByBroadcasts) {
  MeshOptions options;
  options.shared_memory = false;
  EXPECT_EQ(run_on_mesh(GetParam(), options, optimus), "");
}

TEST_P(Table1, Megatron) {
  EXPECT_EQ(run_on_mesh(GetParam(), {}, [](const MeshPtr& mesh) { megatron(mesh->group()); }), "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Table1, ::testing::Values(2, 4, 6, 8, 9, 16));

} // namespace
} // namespace tessera::nn::summa
