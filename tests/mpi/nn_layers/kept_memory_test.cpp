// What a distributed layer keeps for its backward, as one rank that traces alone counts it, beside
// the bytes that a rank among others then holds: the planner predicts peaks of memory with it.
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/autotune/lone_group.h"
#include "tessera/comm/world.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/tracer/record_work.h"

#include "bench/support/memory_count.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kSamples = 4;
constexpr std::int64_t kSequence = 32;
constexpr std::int64_t kWidth = 96;

bench::MemoryCount& memory() {
  static bench::MemoryCount& count = bench::MemoryCount::install();
  return count;
}

nn::TransformerOptions layer_options() {
  nn::TransformerOptions options;
  options.num_attention_heads = 8;
  options.attention_head_size = kWidth / options.num_attention_heads;
  options.hidden_size = kWidth;
  options.intermediate_size = 4 * kWidth;
  options.attention_dropout_prob = 0;
  options.hidden_dropout_prob = 0;
  options.activation = "gelu_tanh";
  options.causal_mask_size = kSequence;
  options.pre_layernorm = true;
  options.post_layernorm = false;
  return options;
}

torch::Tensor hidden_states(const nn::TensorParallel& parallel) {
  const std::int64_t samples = parallel.prescaled_batch ? kSamples : kSamples / parallel.size();
  return torch::randn({samples, kSequence, kWidth});
}

double held_among_others(const nn::TensorParallel& parallel) {
  const nn::TensorParallelScope scope(parallel);
  nn::DistributedTransformerLayer layer(layer_options());
  const torch::Tensor x = hidden_states(parallel).requires_grad_(true);
  layer->hidden_states(x); // what a layer makes once stays
  const std::int64_t before = memory().now();
  const torch::Tensor y = layer->hidden_states(x);
  return static_cast<double>(memory().now() - before - static_cast<std::int64_t>(y.nbytes()));
}

double counted_alone(const nn::TensorParallel& like) {
  autotune::LoneGroup group(like.size());
  nn::TensorParallel parallel = like;
  parallel.group = &group;
  parallel.shapes_only = true;
  if (like.mesh != nullptr) {
    parallel.mesh = nn::summa::Mesh::outline(
        group,
        std::make_unique<autotune::LoneGroup>(like.mesh->columns()),
        std::make_unique<autotune::LoneGroup>(like.mesh->rows()));
  }
  const tracer::DelayedInitScope delayed;
  const nn::TensorParallelScope scope(parallel);
  nn::DistributedTransformerLayer layer(layer_options());
  double kept = 0;
  const torch::Tensor x = hidden_states(parallel); // an input is held by who made it
  const auto run = [&] { layer->hidden_states(x); };
  for (const graph::OperatorWork& work : tracer::record_work(*layer, run)) {
    kept += work.kept_bytes;
  }
  return kept;
}

TEST(KeptMemoryOfADistributedLayer, IsWhatOneRankCountsAlone) {
  memory();
  comm::WorldOptions options;
  options.timeout = std::chrono::seconds(60);
  const comm::WorldPtr world = comm::mpi_world(options);
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->new_group("tp", ranks);
  for (const auto distribution :
       {nn::Distribution::kSpeed, nn::Distribution::kMemory, nn::Distribution::kTwoD}) {
    for (const bool prescaled : {false, true}) {
      nn::TensorParallel parallel;
      parallel.group = group.get();
      parallel.distribution = distribution;
      parallel.prescaled_batch = prescaled;
      if (distribution == nn::Distribution::kTwoD) {
        parallel.mesh = nn::summa::Mesh::make(*world, *group, {});
      }
      const double held = held_among_others(parallel);
      const double counted = counted_alone(parallel);
      EXPECT_NEAR(counted / held, 1, 0.03)
          << "distribution " << static_cast<int>(distribution) << (prescaled ? ", prescaled" : "")
          << ": counted " << counted << ", held " << held;
    }
  }
}

} // namespace
} // namespace tessera::testing
