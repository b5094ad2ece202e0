// The largest batch in a given memory (figure 9 of Xu et al. 2021), by bytes that steps really
// take: managed memory on a mesh beside layers in one dimension.
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/nn/managed/managed_stack.h"

#include "bench/support/megatron_stem.h"
#include "bench/support/memory_count.h"
#include "tests/unit/nn_summa/weights.h"

namespace tessera::nn::summa {
namespace {

constexpr int kStemLayers = 2;
constexpr std::int64_t kPositions = 16;

/// Returns the bytes that a step of so many samples takes at most on the rank that takes most.
using BytesOfStep = std::function<std::int64_t(std::int64_t samples)>;

class LargestBatch : public ::testing::Test {
 protected:
  LargestBatch() {
    comm::WorldOptions options;
    options.timeout = std::chrono::seconds(60);
    world_ = comm::mpi_world(options);
    std::vector<int> ranks(static_cast<std::size_t>(world_->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = world_->new_group("tp", ranks);
    shape_ = topology::mesh_shape(world_->size());
    hidden_ = std::int64_t{72} * shape_.columns; // grows with a side of the mesh, as in table 2
  }

  std::int64_t bytes_on_mesh(std::int64_t samples) {
    return most_of([&] {
      MeshOptions options;
      options.shared_memory = false; // so that all memory is of tensors
      const MeshPtr mesh = Mesh::make(*world_, *group_, options);
      std::vector<DistributedTransformerLayer> layers = cases::make_on(mesh, [&] {
        std::vector<DistributedTransformerLayer> made;
        for (int i = 0; i < kStemLayers; ++i) {
          made.push_back(cases::layer_on_mesh(cases::layer_options(hidden_, world_->size())));
        }
        return made;
      });
      managed::ManagedStack stem(layers);
      stem.backward(
          stem.forward(at::ones({samples / mesh->rows(), kPositions, hidden_ / mesh->columns()})));
    });
  }

  std::int64_t bytes_in_one_dimension(std::int64_t samples) {
    return most_of([&] {
      bench::MegatronStem stem(*group_, kStemLayers, hidden_, world_->size());
      stem.backward(stem.forward(at::ones({samples, kPositions, hidden_})));
    });
  }

  /// Returns the samples that fit by the line through two counted steps.
  static double
  largest_by_formula(const BytesOfStep& bytes, std::int64_t unit, std::int64_t limit) {
    const std::int64_t few = 16 * unit;
    const std::int64_t more = 24 * unit;
    const auto of_few = static_cast<double>(bytes(few));
    const double of_sample =
        (static_cast<double>(bytes(more)) - of_few) / static_cast<double>(more - few);
    return static_cast<double>(few) + (static_cast<double>(limit) - of_few) / of_sample;
  }

  /// Returns the largest multiple of `unit` whose step, really run, takes at most `limit` bytes;
  /// `guess` is where the search begins.
  static std::int64_t
  largest(const BytesOfStep& bytes, std::int64_t unit, std::int64_t limit, double guess) {
    std::int64_t samples = static_cast<std::int64_t>(guess) / unit * unit;
    while (samples > 0 && bytes(samples) > limit) {
      samples -= unit;
    }
    while (bytes(samples + unit) <= limit) {
      samples += unit;
    }
    return samples;
  }

  int ranks() const {
    return world_->size();
  }
  int rows() const {
    return shape_.rows;
  }

 private:
  /// Returns the bytes of tensors that `run` takes at most, on the rank that takes most.
  template <typename Run>
  std::int64_t most_of(const Run& run) {
    bench::MemoryCount& memory = bench::MemoryCount::install();
    memory.restart();
    const std::int64_t before = memory.now();
    run();
    const at::Tensor most = at::full({1}, memory.most() - before, at::kLong);
    group_->all_reduce(most, comm::ReduceOp::kMax);
    return most.item<std::int64_t>();
  }

  comm::WorldPtr world_;
  comm::ProcessGroupPtr group_;
  topology::MeshShape shape_;
  std::int64_t hidden_ = 0;
};

/// In the memory in which layers in one dimension run kInOneDimension samples.
TEST_F(LargestBatch, OfAMeshGrowsWithTheRanks) {
  constexpr std::int64_t kInOneDimension = 64;
  const BytesOfStep mesh = [&](std::int64_t samples) { return bytes_on_mesh(samples); };
  const BytesOfStep line = [&](std::int64_t samples) { return bytes_in_one_dimension(samples); };
  const std::int64_t limit = line(kInOneDimension);
  EXPECT_GT(line(kInOneDimension + 1), limit);
  const double predicted = largest_by_formula(mesh, rows(), limit);
  const std::int64_t on_mesh = largest(mesh, rows(), limit, predicted);
  EXPECT_NEAR(static_cast<double>(on_mesh), predicted, 2.0 * rows());
  // It grows with the ranks beside the 64 of one dimension.
  EXPECT_GE(on_mesh, 12 * ranks());
  RecordProperty("largest_on_mesh", static_cast<int>(on_mesh));
}

} // namespace
} // namespace tessera::nn::summa
