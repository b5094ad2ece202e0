// What a rank keeps of a layer between forward and backward: on a mesh a p-th of all (Xu et al.
// 2021, section 3.1.1), in one dimension at least the three activations that every rank holds
// whole, however many ranks there are.
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <c10/util/ThreadLocalDebugInfo.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "cases.h"
#include "mesh_ranks.h"
#include "tests/support/live_bytes.h"
#include "weights.h"

namespace tessera::nn::summa {
namespace {

constexpr std::int64_t kBatch = 36;
constexpr std::int64_t kLength = 4;
constexpr std::int64_t kHidden = 144;
constexpr std::int64_t kHeads = 36; // what 4 and 9 ranks can divide
constexpr std::int64_t kWholeBytes = 4 * kBatch * kLength * kHidden; // of one activation

/// Returns the bytes between forward and backward of the second step, input and result included:
/// memory that a rank takes once, as a workspace, has been taken by then.
std::int64_t kept_of(DistributedTransformerLayer& layer, at::IntArrayRef sizes) {
  std::int64_t kept = 0;
  for (int step = 0; step < 2; ++step) {
    const auto live = std::make_shared<testing::LiveBytes>();
    at::Tensor y;
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
      y = layer->hidden_states(at::ones(sizes).requires_grad_());
      kept = live->bytes;
    }
    y.backward(at::ones_like(y));
  }
  return kept;
}

/// Returns the most that a rank of `ranks` keeps.
template <typename Kept>
std::int64_t most_kept(int ranks, const Kept& kept) {
  std::mutex mutex;
  std::int64_t most = 0;
  const std::string errors =
      run_on_ranks(ranks, [&](comm::World& world, comm::ProcessGroup& group) {
        const std::int64_t mine = kept(world, group);
        const std::lock_guard lock(mutex);
        most = std::max(most, mine);
      });
  EXPECT_EQ(errors, "");
  return most;
}

std::int64_t kept_on_mesh(int ranks) {
  return most_kept(ranks, [](comm::World& world, comm::ProcessGroup& group) {
    MeshOptions options;
    options.shared_memory = false; // so that all memory is of tensors
    const MeshPtr mesh = Mesh::make(world, group, options);
    auto layer = cases::make_on(
        mesh, [&] { return cases::layer_on_mesh(cases::layer_options(kHidden, kHeads)); });
    return kept_of(layer, {kBatch / mesh->rows(), kLength, kHidden / mesh->columns()});
  });
}

std::int64_t kept_in_one_dimension(int ranks) {
  return most_kept(ranks, [](comm::World& /*world*/, comm::ProcessGroup& group) {
    auto layer = cases::layer_in_one_dimension(group, cases::layer_options(kHidden, kHeads));
    return kept_of(layer, {kBatch, kLength, kHidden});
  });
}

TEST(KeptActivations, ARankOfAMeshKeepsItsShare) {
  const auto all = static_cast<double>(kept_on_mesh(1));
  for (const int ranks : {4, 9}) {
    const double share = static_cast<double>(kept_on_mesh(ranks)) * ranks / all;
    // Vectors of row 0 and two moments a position are on every rank.
    EXPECT_GE(share, 0.95) << ranks << " ranks";
    EXPECT_LE(share, 1.06) << ranks << " ranks";
  }
}

TEST(KeptActivations, ARankInOneDimensionKeepsThreeWholeActivations) {
  for (const int ranks : {4, 9}) {
    EXPECT_GE(kept_in_one_dimension(ranks), 3 * kWholeBytes) << ranks << " ranks";
  }
  // All of a layer on 9 ranks of a mesh is less than what no number of ranks divides.
  EXPECT_LT(kept_on_mesh(9), 3 * kWholeBytes);
  // a + b / p on p ranks: a is what is whole on each.
  const auto four = static_cast<double>(kept_in_one_dimension(4));
  const auto nine = static_cast<double>(kept_in_one_dimension(9));
  const double whole = (9 * nine - 4 * four) / 5;
  EXPECT_GE(whole, 3.0 * kWholeBytes);
}

} // namespace
} // namespace tessera::nn::summa
