// Neural collaborative filtering whose four tables are distributed, alone and under pipelines: ten
// steps equal the plain loop.
#include "models/ncf.h"

#include <mpi.h>

#include <gmock/gmock.h>

#include "tessera/model/model_core.h"
#include "tessera/train/model_access.h"

#include "tests/parity/train_slices.h"

namespace tessera::testing {
namespace {

using ::testing::UnorderedElementsAre;

constexpr int kPairs = 32;
constexpr int kNcfSteps = 10;
constexpr int kNcfMicrobatches = 2;
constexpr int kUsers = 40;
constexpr int kItems = 30;

models::Ncf marked_net() {
  models::NcfOptions options;
  options.users = kUsers;
  options.items = kItems;
  options.factors = 8;
  options.first_layer = 16;
  options.layers = 3;
  const tensor_parallelism marked;
  models::Ncf net(options);
  // Embeddings of 0.01 learn little in ten steps.
  const torch::NoGradGuard no_grad;
  for (auto& item : net->named_parameters()) {
    if (item.key().find("embed") != std::string::npos) {
      item.value().mul_(50);
    }
  }
  return net;
}

Tensors pairs_of(int step) {
  torch::manual_seed(500 + step);
  const auto users = torch::randint(0, kUsers, {kPairs}, torch::kLong);
  const auto items = torch::randint(0, kItems, {kPairs}, torch::kLong);
  return {users, items, (users + items > 15).to(torch::kFloat)};
}

struct Layout {
  int pp, tp, rdp;
  bool prescaled;
};

std::vector<Layout> layouts() {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  std::vector<Layout> list;
  for (const int pp : {1, 2, 4}) {
    for (const int tp : {2, 4}) {
      if (world % (pp * tp) == 0 && world / (pp * tp) <= 2) {
        for (const bool prescaled : {false, true}) {
          list.push_back({pp, tp, world / (pp * tp), prescaled});
        }
      }
    }
  }
  return list;
}

Config config_of(const Layout& layout) {
  Config config;
  config.pipeline_parallel_degree = layout.pp;
  config.tensor_parallel_degree = layout.tp;
  config.prescaled_batch = layout.prescaled;
  config.ddp = true;
  config.microbatches = kNcfMicrobatches;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  config.memory_weight = 1.0; // by bytes: the same partition in every run
  return config;
}

TEST(CollaborativeFiltering, OnlyTheFourTablesAreDistributed) {
  const std::vector<Layout> list = layouts();
  ASSERT_FALSE(list.empty());
  const Layout& layout = list.front();
  init(config_of(layout));
  const Ended ended;
  const models::Ncf net = marked_net();
  const DistributedModel model(net);
  std::vector<std::string> paths;
  for (const auto& replaced : train::ModelAccess::core(model)->replacements().replaced) {
    paths.push_back(replaced.path);
    EXPECT_EQ(replaced.rule->distributed, "DistributedEmbedding");
  }
  EXPECT_THAT(
      paths,
      UnorderedElementsAre("mf_user_embed", "mf_item_embed", "mlp_user_embed", "mlp_item_embed"));
  for (const auto& item : net->named_parameters()) {
    if (item.key() == "mf_user_embed.weight") {
      EXPECT_EQ(item.value().size(1), 8 / layout.tp); // a rank's share of the width
    }
  }
}

TEST(CollaborativeFiltering, WithItsTablesDistributedItEqualsOneProcess) {
  const auto losses = [](auto& model, const Tensors& batch) -> Tensors {
    return {torch::binary_cross_entropy_with_logits(model(batch[0], batch[1]), batch[2])};
  };
  for (const Layout& layout : layouts()) {
    const int replicas = layout.rdp * (layout.prescaled ? 1 : layout.tp);
    const auto wanted = train_plain_slices(
        marked_net, pairs_of, losses, kNcfSteps, replicas, kNcfMicrobatches, 0.1);
    EXPECT_LT(wanted.losses.back()[0], wanted.losses.front()[0]);
    const auto got =
        train_distributed_slices(config_of(layout), marked_net, pairs_of, losses, kNcfSteps, 0.1);
    expect_equal(
        got,
        wanted,
        str("pp ",
            layout.pp,
            ", tp ",
            layout.tp,
            ", rdp ",
            layout.rdp,
            layout.prescaled ? ", prescaled" : ""));
  }
}

} // namespace
} // namespace tessera::testing
