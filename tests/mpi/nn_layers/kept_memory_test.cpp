// What a distributed layer keeps for its backward, as one rank that traces alone counts it, beside
// the bytes that a rank among others then holds: the planner predicts peaks of memory with it.
#include <algorithm>
#include <array>
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
#include "tessera/nn/layers/lm_head.h"
#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/tracer/record_work.h"

#include "bench/support/memory_count.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kSamples = 4;
constexpr std::int64_t kSequence = 32;
constexpr std::int64_t kWidth = 96;
constexpr std::int64_t kVocabulary = 512;

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
  options.num_layers = 2;
  options.vocab_size = kVocabulary;
  options.num_positions = kSequence;
  return options;
}

torch::Tensor hidden_states(const nn::TensorParallel& parallel) {
  const std::int64_t samples = parallel.prescaled_batch ? kSamples : kSamples / parallel.size();
  return torch::randn({samples, kSequence, kWidth});
}

torch::Tensor own_ids(const nn::TensorParallel& parallel) {
  const std::int64_t samples = parallel.prescaled_batch ? kSamples : kSamples / parallel.size();
  return torch::randint(kVocabulary, {samples, kSequence}, torch::kLong);
}

/// All ranks of the test as one tensor-parallel group.
struct AllRanks {
  AllRanks() {
    comm::WorldOptions options;
    options.timeout = std::chrono::seconds(60);
    world = comm::mpi_world(options);
    std::vector<int> ranks(static_cast<std::size_t>(world->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    group = world->new_group("tp", ranks);
  }
  nn::TensorParallel parallel(nn::Distribution distribution, bool prescaled) const {
    nn::TensorParallel made;
    made.group = group.get();
    made.distribution = distribution;
    made.prescaled_batch = prescaled;
    if (distribution == nn::Distribution::kTwoD) {
      made.mesh = nn::summa::Mesh::make(*world, *group, {});
    }
    return made;
  }
  comm::WorldPtr world;
  comm::ProcessGroupPtr group;
};

enum class What { kLayer, kModel, kModelWithLoss };

/// The loss of a language model, by libtorch or by the model itself.
torch::Tensor
loss_of(nn::DistributedTransformerLMHead& model, const torch::Tensor& ids, bool by_model) {
  nn::LMHeadInputs inputs;
  inputs.input_ids = ids;
  if (by_model) {
    inputs.labels = ids;
    return model->run(inputs);
  }
  return at::cross_entropy_loss(model->run(inputs).flatten(0, 1), ids.flatten());
}

double held_by_model(const nn::TensorParallel& parallel, bool with_loss) {
  const nn::TensorParallelScope scope(parallel);
  nn::DistributedTransformerLMHead model(layer_options());
  const torch::Tensor ids = own_ids(parallel);
  loss_of(model, ids, with_loss); // what a model makes once stays
  const std::int64_t before = memory().now();
  const torch::Tensor loss = loss_of(model, ids, with_loss);
  return static_cast<double>(memory().now() - before);
}

double held_by_layer(const nn::TensorParallel& parallel) {
  const nn::TensorParallelScope scope(parallel);
  nn::DistributedTransformerLayer layer(layer_options());
  const torch::Tensor x = hidden_states(parallel).requires_grad_(true);
  layer->hidden_states(x); // what a layer makes once stays
  const std::int64_t before = memory().now();
  const torch::Tensor y = layer->hidden_states(x);
  return static_cast<double>(memory().now() - before - static_cast<std::int64_t>(y.nbytes()));
}

struct Counted {
  double kept = 0;
  std::array<double, 3> buffers = {}; // of a mesh's exchange
};

Counted counted_alone(const nn::TensorParallel& like, What what) {
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
  // An input is held by who made it, and is there.
  const torch::Tensor x = hidden_states(parallel);
  const torch::Tensor ids = own_ids(parallel);
  const tracer::DelayedInitScope delayed;
  const nn::TensorParallelScope scope(parallel);
  graph::ForwardWork all;
  if (what == What::kLayer) {
    nn::DistributedTransformerLayer layer(layer_options());
    all = tracer::record_work(*layer, [&] { layer->hidden_states(x); });
  } else {
    nn::DistributedTransformerLMHead model(layer_options());
    all = tracer::record_work(*model, [&] { loss_of(model, ids, what == What::kModelWithLoss); });
  }
  Counted counted;
  for (const graph::OperatorWork& work : all) {
    counted.kept += work.kept_bytes;
    for (std::size_t b = 0; b < counted.buffers.size(); ++b) {
      counted.buffers[b] = std::max(counted.buffers[b], work.buffer_bytes[b]);
    }
  }
  return counted;
}

/// Runs a forward and its backward.
void train_model(const nn::TensorParallel& parallel) {
  const nn::TensorParallelScope scope(parallel);
  nn::DistributedTransformerLMHead model(layer_options());
  loss_of(model, own_ids(parallel), true).backward();
}

TEST(KeptMemoryOfADistributedModule, IsWhatOneRankCountsAlone) {
  memory();
  const AllRanks all;
  for (const auto distribution :
       {nn::Distribution::kSpeed, nn::Distribution::kMemory, nn::Distribution::kTwoD}) {
    for (const bool prescaled : {false, true}) {
      const nn::TensorParallel parallel = all.parallel(distribution, prescaled);
      for (const What what : {What::kLayer, What::kModel, What::kModelWithLoss}) {
        const double held = what == What::kLayer
                                ? held_by_layer(parallel)
                                : held_by_model(parallel, what == What::kModelWithLoss);
        const double counted = counted_alone(parallel, what).kept;
        EXPECT_NEAR(counted / held, 1, 0.05)
            << "distribution " << static_cast<int>(distribution) << (prescaled ? ", prescaled" : "")
            << ", case " << static_cast<int>(what) << ": counted " << counted << ", held " << held;
      }
    }
  }
}

// Blocks that other ranks read, and parts of results.
TEST(BuffersOfAMesh, AreAsLargeAsOneRankCountsAlone) {
  const AllRanks all;
  for (const bool prescaled : {false, true}) {
    const nn::TensorParallel parallel = all.parallel(nn::Distribution::kTwoD, prescaled);
    train_model(parallel);
    const auto held = static_cast<double>(parallel.mesh->exchange().workspace_bytes());
    const auto buffers = counted_alone(parallel, What::kModelWithLoss).buffers;
    const double counted = std::accumulate(buffers.begin(), buffers.end(), 0.0);
    EXPECT_NEAR(counted / held, 1, 0.05) << "counted " << counted << ", held " << held;
  }
}

} // namespace
} // namespace tessera::testing
