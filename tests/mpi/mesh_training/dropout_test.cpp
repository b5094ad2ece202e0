// Dropout on a mesh: who holds the same drops the same, parts of one activation lose unlike
// patterns, and a forward that is recomputed drops what it dropped.
#include "tessera/topology/mesh_layout.h"

#include "tests/mpi/mesh_training/support.h"
#include "tests/support/channel_dropper.h"

namespace tessera::testing {
namespace {

constexpr int kRows = 3; // samples of each rank and microbatch
constexpr int kChannels = 48;
constexpr double kProbability = 0.4;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool on_mesh) {
    weight = register_parameter("weight", torch::ones({kChannels}));
    const tensor_parallelism marked(on_mesh);
    dropper = register_module("dropper", ChannelDropper(kChannels, kProbability));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return dropper(x * weight);
  }
  torch::Tensor weight;
  ChannelDropper dropper{nullptr};
};
TESSERA_MODULE(Net);

struct Result {
  std::vector<torch::Tensor> kept; // by microbatch: what was kept of the whole batch of a mesh
  torch::Tensor gradient; // of the weight
  torch::Tensor sums; // of what came out, which the gradient must be
};

/// [ranks of the mesh, ...].
torch::Tensor of_all_ranks(const torch::Tensor& mine) {
  return torch::stack(allgather(mine, Group::kTP));
}

/// A step on ones, so that results are masks; two of them give two.
Result dropped(const Layout& layout, bool on_mesh, const CheckpointOptions* recomputed = nullptr) {
  DistributedModel model{Net(on_mesh)};
  if (recomputed != nullptr) {
    set_activation_checkpointing(model.net()->dropper, *recomputed);
  }
  auto run = tessera::step([&](torch::Tensor x) {
    auto y = model(x);
    model.backward(y.sum());
    return y;
  });
  const int ranks = layout.prescaled ? layout.tp : 1;
  const auto out = run(torch::ones({kMicrobatches * ranks * kRows, kChannels}));
  Result result;
  for (const torch::Tensor& y : out.outputs()) {
    result.kept.push_back(y.detach());
  }
  result.gradient = model.net()->weight.grad().clone();
  result.sums = torch::zeros({kChannels});
  for (const torch::Tensor& y : result.kept) {
    result.sums += y.sum(0) / kMicrobatches;
  }
  return result;
}

/// Splits [samples of a mesh, channels] as the mesh does.
std::vector<torch::Tensor> blocks_of(const torch::Tensor& whole, const Layout& layout) {
  const topology::MeshShape shape = topology::mesh_shape(layout.tp);
  std::vector<torch::Tensor> blocks;
  for (const auto& row : whole.chunk(shape.rows, 0)) {
    for (const auto& block : row.chunk(shape.columns, 1)) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

void expect_all_unlike(const std::vector<torch::Tensor>& masks, const std::string& what) {
  for (std::size_t i = 0; i < masks.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      ASSERT_EQ(masks[i].sizes(), masks[k].sizes()) << what;
      EXPECT_FALSE(masks[i].equal(masks[k])) << what << ", " << i << " and " << k;
    }
  }
}

TEST(MeshDropout, BlocksLoseUnlikePatternsAndCopiesTheSame) {
  for (const Layout& layout : meshes()) {
    if (layout.pp > 1) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    const Result result = dropped(layout, /*on_mesh=*/true);
    std::vector<torch::Tensor> blocks;
    for (const torch::Tensor& mine : result.kept) {
      EXPECT_NEAR(mine.eq(0).to(torch::kFloat).mean().item<double>(), kProbability, 0.2);
      EXPECT_TRUE(torch::allclose(mine.max(), torch::full({}, 1 / (1 - kProbability))));
      const torch::Tensor of_ranks = of_all_ranks(mine);
      if (layout.prescaled) {
        for (int r = 0; r < tp_size(); ++r) {
          EXPECT_TRUE(of_ranks[r].equal(mine)) << layout.text() << ", tp rank " << r;
        }
      }
      const torch::Tensor whole = layout.prescaled ? mine : of_ranks.flatten(0, 1);
      for (const torch::Tensor& block : blocks_of(whole, layout)) {
        blocks.push_back(block);
      }
    }
    EXPECT_EQ(blocks.size(), static_cast<std::size_t>(kMicrobatches * layout.tp));
    expect_all_unlike(blocks, layout.text());
    // Replicas have other samples, and drop others of their elements.
    expect_all_unlike(allgather(result.kept[0], Group::kRDP), layout.text());
  }
}

// Before and after the distributed part, where ranks with a prescaled batch hold copies.
TEST(MeshDropout, OutsideOfTheMeshCopiesDropTheSame) {
  for (const Layout& layout : meshes()) {
    if (layout.pp > 1) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    const Result result = dropped(layout, /*on_mesh=*/false);
    const torch::Tensor of_ranks = of_all_ranks(result.kept[0]);
    for (int r = 0; r < tp_size(); ++r) {
      if (r != tp_rank()) {
        EXPECT_EQ(of_ranks[r].equal(result.kept[0]), layout.prescaled) << layout.text();
      }
    }
  }
}

// The gradient of the weight is what came out of it only if the backward drops what the forward
// dropped. With `preserve_rng_state` false it does not, so this would be seen.
TEST(MeshDropout, ARecomputedForwardDropsTheSame) {
  for (const Layout& layout : meshes()) {
    if (layout.pp > 1) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    const CheckpointOptions keeps;
    const CheckpointOptions draws_anew{.preserve_rng_state = false};
    for (const CheckpointOptions* how : {static_cast<const CheckpointOptions*>(nullptr), &keeps}) {
      const Result result = dropped(layout, /*on_mesh=*/true, how);
      // The mean over all who have other samples.
      const torch::Tensor wanted = torch::stack(allgather(result.sums, Group::kDP)).mean(0);
      EXPECT_TRUE(torch::allclose(result.gradient, wanted)) << layout.text();
    }
    const Result other = dropped(layout, /*on_mesh=*/true, &draws_anew);
    if (layout.prescaled && rdp_size() == 1) {
      EXPECT_FALSE(torch::allclose(other.gradient, other.sums)) << layout.text();
    }
  }
}

// A script may seed all its ranks alike and call layers outside of steps.
TEST(MeshDropout, GeneratorsThatAreAlikeDropUnlike) {
  for (const Layout& layout : meshes()) {
    if (layout.pp > 1) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{Net(true)};
    torch::manual_seed(3);
    const torch::Tensor mine = model(torch::ones({kRows * layout.tp, kChannels})).detach();
    const torch::Tensor whole = layout.prescaled ? mine : of_all_ranks(mine).flatten(0, 1);
    expect_all_unlike(blocks_of(whole, layout), layout.text());
  }
}

} // namespace
} // namespace tessera::testing
