// The bytes that a layer's collectives hand to MPI, on 4, 9 and 16 ranks, against Table 1 and
// figure 8 of Xu et al. 2021.
//
// Table 1 charges a broadcast or a reduction of B scalars among q ranks with log2(q) B, the time of
// a tree (equation 4). What such a collective moves is (q - 1) B, whichever way it goes, so that
// the table's 7 b s h + 12 h^2 and 21 b s h + 36 h^2 move q - 1 times over all ranks together.
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include <mpi.h>

#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/nn/managed/managed_stack.h"
#include "tessera/nn/module/activation_checkpointing.h"
#include "tessera/nn/module/containers.h"

#include "bench/support/megatron_stem.h"
#include "counted_messages.h"
#include "tests/unit/nn_summa/weights.h"

namespace tessera::nn::summa {
namespace {

using testing::Sent;
using testing::set_nodes;
using testing::take_sent_by_all;

constexpr double kFloatBytes = 4;

/// The ranks of this run as one group.
struct AllRanks {
  explicit AllRanks(const std::string& same_node) {
    comm::WorldOptions options;
    options.timeout = std::chrono::seconds(60);
    options.same_node = same_node;
    world = comm::mpi_world(options);
    std::vector<int> ranks(static_cast<std::size_t>(world->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    group = world->new_group("tp", ranks);
  }
  comm::WorldPtr world;
  comm::ProcessGroupPtr group;
};

struct Sizes {
  double b;
  double s;
  double h;

  double activations() const { // a layer's 7 b s h
    return 7 * b * s * h;
  }
  double weights() const { // a layer's 12 h^2
    return 12 * h * h;
  }
};

/// What all ranks together sent in a forward and a backward.
struct Step {
  Sent forward;
  Sent backward;
};

/// Counts a step of `forward` and `backward`, whose ranks start and end together.
template <typename Forward, typename Backward>
Step count_step(const Forward& forward, const Backward& backward) {
  take_sent_by_all();
  const at::Tensor y = forward();
  Step step;
  step.forward = take_sent_by_all();
  backward(at::ones_like(y));
  step.backward = take_sent_by_all();
  return step;
}

/// A layer on the mesh, with activation checkpointing that runs the whole forward again.
Step step_on(const MeshPtr& mesh, const Sizes& sizes) {
  const auto columns = static_cast<std::int64_t>(mesh->columns());
  const auto hidden = static_cast<std::int64_t>(sizes.h);
  std::vector<DistributedTransformerLayer> layers = {cases::make_on(
      mesh, [&] { return cases::layer_on_mesh(cases::layer_options(hidden, columns)); })};
  managed::Savings savings;
  savings.skip_products = false;
  managed::ManagedStack stem(layers, savings);
  const at::Tensor x = at::ones(
      {static_cast<std::int64_t>(sizes.b) / mesh->rows(),
       static_cast<std::int64_t>(sizes.s),
       hidden / columns});
  return count_step(
      [&] { return stem.forward(x); }, [&](const at::Tensor& g) { stem.backward(g); });
}

void expect_bytes(std::int64_t found, double scalars, double tolerance, const std::string& what) {
  const double expected = kFloatBytes * scalars;
  EXPECT_NEAR(static_cast<double>(found), expected, tolerance * expected) << what;
}

TEST(MovedBytes, OfOptimusAreThoseOfTable1) {
  const AllRanks all("mpi");
  MeshOptions options;
  options.shared_memory = false;
  const MeshPtr mesh = Mesh::make(*all.world, *all.group, options);
  const double q = mesh->rows();
  // Panels of at most 16 KiB and of more, which a reduction sends another way.
  for (const bool longer : {false, true}) {
    const Sizes sizes = {2 * q, 16, (longer ? 160 : 24) * q};
    const Step step = step_on(mesh, sizes);
    const double moved = (q - 1) * (sizes.activations() + sizes.weights());
    // What the paper leaves out as negligible: biases and norms from row 0, moments gathered along
    // rows; in the backward again, with their gradients and with sums that all ranks of a row add.
    const double moments = 2 * q * (q - 1) * 2 * sizes.b * sizes.s;
    const double vectors = (q - 1) * 13 * sizes.h;
    const double small_forward = vectors + moments;
    const double small_backward = 2 * vectors + 2 * moments;
    expect_bytes(step.forward.bytes, moved + small_forward, 0.001, "forward, with small ones");
    // A third of the backward are reductions. Long ones of more than two ranks go by slices, which
    // takes a q-th more.
    const double by_slices = longer && q > 2 ? moved / q : 0;
    expect_bytes(
        step.backward.bytes,
        3 * moved + by_slices + small_backward,
        0.001,
        "backward, with small ones");
    // Beside the table's terms all of that is little where layers are wide.
    if (longer) {
      expect_bytes(step.forward.bytes, moved, 0.02, "Table 1, forward");
    }
    if (by_slices == 0) {
      expect_bytes(step.backward.bytes, 3 * moved, 0.02, "Table 1, backward");
    }
  }
}

TEST(MovedBytes, OfTheBaselineAreThoseOfTable1) {
  const AllRanks all("mpi");
  const double p = all.world->size();
  const auto ranks = static_cast<std::int64_t>(p);
  const Sizes sizes = {p, 36, 8 * p};
  const auto hidden = static_cast<std::int64_t>(sizes.h);
  bench::MegatronStem stem(*all.group, 1, hidden, ranks);
  const at::Tensor x = at::ones({ranks, 36, hidden});
  const Step step =
      count_step([&] { return stem.forward(x); }, [&](const at::Tensor& g) { stem.backward(g); });
  const double whole = sizes.b * sizes.s * sizes.h;
  // The table is of one rank; `step` is of all.
  expect_bytes(step.forward.bytes, 4 * (p - 1) * whole, 0.001, "forward");
  const double checkpoint = (p - 1) * whole; // which ranks hold in parts, as section 3.1.1 has it
  expect_bytes(step.backward.bytes, 8 * (p - 1) * whole + checkpoint, 0.001, "backward");
}

TEST(MovedBytes, OfALayerInOneDimensionAreThoseOfTable1) {
  const AllRanks all("mpi");
  const double p = all.world->size();
  const auto ranks = static_cast<std::int64_t>(p);
  const Sizes sizes = {p, 36, 8 * p};
  const auto hidden = static_cast<std::int64_t>(sizes.h);
  Sequential layers{cases::layer_in_one_dimension(*all.group, cases::layer_options(hidden, ranks))};
  set_activation_checkpointing(layers, {.strategy = "each"});
  const at::Tensor x = at::ones({ranks, 36, hidden}).requires_grad_();
  const at::Tensor none;
  at::Tensor y;
  const Step step = count_step(
      [&] {
        y = std::get<0>(layers->forward_as<TransformerState>(x, none, none, none));
        return y;
      },
      [&](const at::Tensor& gradient) { y.backward(gradient); });
  const double whole = sizes.b * sizes.s * sizes.h;
  expect_bytes(step.forward.bytes, 4 * (p - 1) * whole, 0.001, "forward");
  // The forward that runs again ends before the last sum, which no backward needs.
  expect_bytes(step.backward.bytes, (8 - 2) * (p - 1) * whole, 0.001, "backward");
}

std::int64_t between_nodes(topology::MeshArrangement arrangement, const Sizes& sizes) {
  const AllRanks all("auto");
  MeshOptions options;
  options.arrangement = arrangement;
  const Step step = step_on(Mesh::make(*all.world, *all.group, options), sizes);
  return step.forward.between_nodes + step.backward.between_nodes;
}

/// Figure 8: with the ranks of a node in a rectangle less travels between nodes than with ranks in
/// their order, as much less as docs/algorithms.md says.
TEST(MovedBytes, BetweenNodesAreFewerWhenRanksAreBunched) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 4 && ranks != 16) {
    GTEST_SKIP() << "nodes of four ranks, or two nodes of two";
  }
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) {
    // Four nodes, one after the other; or two to which ranks are dealt in turn.
    nodes.push_back(ranks == 16 ? rank / 4 : rank % 2);
  }
  set_nodes(nodes);
  const Sizes sizes = ranks == 16 ? Sizes{8, 32, 512} : Sizes{16, 32, 128};
  const std::int64_t natural = between_nodes(topology::MeshArrangement::kRowMajor, sizes);
  const std::int64_t bunched = between_nodes(topology::MeshArrangement::kBunched, sizes);
  set_nodes({});
  EXPECT_LT(static_cast<double>(bunched), 0.6 * static_cast<double>(natural));
  if (ranks == 16) {
    expect_bytes(natural, 12.75 * sizes.weights(), 0.05, "natural order");
    expect_bytes(bunched, 5.5 * (sizes.activations() + sizes.weights()), 0.05, "bunched");
  } else {
    // Only rows are on two nodes in the natural order, only columns when bunched.
    expect_bytes(natural, 4 * sizes.activations(), 0.05, "natural order");
    expect_bytes(bunched, 4 * sizes.weights(), 0.05, "bunched");
  }
}

} // namespace
} // namespace tessera::nn::summa
