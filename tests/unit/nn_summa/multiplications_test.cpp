// Counted multiplications of a layer against Table 1 of Xu et al. 2021: of Optimus on meshes and of
// layers divided in one dimension, the baseline's and this library's.
#include "tests/support/multiplications.h"

#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/managed/managed_stack.h"
#include "tessera/nn/module/activation_checkpointing.h"
#include "tessera/nn/module/containers.h"

#include "bench/support/megatron_stem.h"
#include "cases.h"
#include "mesh_ranks.h"
#include "weights.h"

namespace tessera::nn::summa {
namespace {

using testing::Multiplications;

/// A layer's sizes, which p = 4, 9 and 16 ranks divide alike.
struct LayerSizes {
  std::int64_t b;
  std::int64_t s;
  std::int64_t h;
  std::int64_t heads;

  /// Table 1, computation forward, of all ranks together.
  std::int64_t forward() const {
    return 12 * b * s * h * h + 2 * b * s * s * h;
  }
};

LayerSizes sizes_for(int ranks) {
  return {2 * ranks, 5, 4 * ranks, ranks};
}

void require_count(std::int64_t found, std::int64_t expected, const std::string& what) {
  cases::require(
      found == expected,
      tessera::str(what, ": ", found, " multiplications on a rank, the table says ", expected));
}

/// With activation checkpointing, which counts the forward again in the backward.
void multiplications_of_optimus(const MeshPtr& mesh) {
  const int p = mesh->group().size();
  const LayerSizes sizes = sizes_for(p);
  std::vector<DistributedTransformerLayer> layers = {cases::make_on(
      mesh, [&] { return cases::layer_on_mesh(cases::layer_options(sizes.h, sizes.heads)); })};
  managed::Savings savings;
  savings.skip_products = false; // the paper's table is without this saving
  managed::ManagedStack stem(layers, savings);
  const at::Tensor x = at::ones({sizes.b / mesh->rows(), sizes.s, sizes.h / mesh->columns()});
  Multiplications counted;
  stem.forward(x);
  require_count(counted.take(), sizes.forward() / p, "Optimus, forward");
  stem.backward(at::ones_like(x));
  require_count(counted.take(), 3 * sizes.forward() / p, "Optimus, backward");
}

/// Without activation checkpointing: the backward is twice the forward (section 4).
void multiplications_of_a_kept_layer(const MeshPtr& mesh) {
  const int p = mesh->group().size();
  const LayerSizes sizes = sizes_for(p);
  auto layer = cases::make_on(
      mesh, [&] { return cases::layer_on_mesh(cases::layer_options(sizes.h, sizes.heads)); });
  const at::Tensor x =
      at::ones({sizes.b / mesh->rows(), sizes.s, sizes.h / mesh->columns()}).requires_grad_();
  Multiplications counted;
  const at::Tensor y = layer->hidden_states(x);
  require_count(counted.take(), sizes.forward() / p, "a layer on the mesh, forward");
  y.backward(at::ones_like(y));
  require_count(counted.take(), 2 * sizes.forward() / p, "a layer on the mesh, backward");
}

void multiplications_of_megatron(const MeshPtr& mesh) {
  const int p = mesh->group().size();
  const LayerSizes sizes = sizes_for(p);
  bench::MegatronStem stem(mesh->group(), 1, sizes.h, sizes.heads);
  const at::Tensor x = at::ones({sizes.b, sizes.s, sizes.h});
  Multiplications counted;
  stem.forward(x);
  require_count(counted.take(), sizes.forward() / p, "the baseline, forward");
  stem.backward(at::ones_like(x));
  require_count(counted.take(), 3 * sizes.forward() / p, "the baseline, backward");
}

/// This library's layer in Megatron's distribution, recomputed in the backward.
void multiplications_of_one_dimension(const MeshPtr& mesh) {
  const int p = mesh->group().size();
  const LayerSizes sizes = sizes_for(p);
  Sequential layers{
      cases::layer_in_one_dimension(mesh->group(), cases::layer_options(sizes.h, sizes.heads))};
  set_activation_checkpointing(layers, {.strategy = "each"});
  const at::Tensor x = at::ones({sizes.b, sizes.s, sizes.h}).requires_grad_();
  const at::Tensor none;
  Multiplications counted;
  const at::Tensor y = std::get<0>(layers->forward_as<TransformerState>(x, none, none, none));
  require_count(counted.take(), sizes.forward() / p, "one dimension, forward");
  y.backward(at::ones_like(y));
  // The forward that runs again ends before the last product, which no backward needs.
  const std::int64_t last = 4 * sizes.b * sizes.s * sizes.h * sizes.h;
  require_count(counted.take(), (3 * sizes.forward() - last) / p, "one dimension, backward");
}

class Table1Computation : public ::testing::TestWithParam<int> {};

TEST_P(Table1Computation, Optimus) {
  for (const bool shared : {true, false}) {
    MeshOptions options;
    options.shared_memory = shared;
    EXPECT_EQ(run_on_mesh(GetParam(), options, multiplications_of_optimus), "");
  }
}

TEST_P(Table1Computation, LayerOnTheMeshWithoutCheckpointing) {
  EXPECT_EQ(run_on_mesh(GetParam(), {}, multiplications_of_a_kept_layer), "");
}

TEST_P(Table1Computation, Megatron) {
  EXPECT_EQ(run_on_mesh(GetParam(), {}, multiplications_of_megatron), "");
}

TEST_P(Table1Computation, LayerInOneDimension) {
  EXPECT_EQ(run_on_mesh(GetParam(), {}, multiplications_of_one_dimension), "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Table1Computation, ::testing::Values(1, 4, 9, 16));

} // namespace
} // namespace tessera::nn::summa
