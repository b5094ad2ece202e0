// What crosses nodes, what is live and what is gathered ahead, where shard groups are on several
// nodes.
#include "tests/mpi/sharding/nodes.h"

namespace tessera::testing {
namespace {

constexpr int kLayers = 8;
constexpr int kSide = 16;
constexpr std::int64_t kLayer = kSide * kSide;

/// Layers of one matrix each, which a step reads in their order.
torch::nn::Sequential layers() {
  torch::manual_seed(7);
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kSide, kSide).bias(false)));
  }
  return net;
}

/// Of all ranks.
sharding::PartService::Counts crossings() {
  sharding::PartService::Counts all;
  const sharding::PartService::Counts own = context().part_service->counts();
  for (const std::int64_t count : allgather(own.messages, Group::kWorld)) {
    all.messages += count;
  }
  for (const std::int64_t count : allgather(own.parts, Group::kWorld)) {
    all.parts += count;
  }
  for (const std::int64_t count : allgather(own.bytes, Group::kWorld)) {
    all.bytes += count;
  }
  return all;
}

// With room for all: between updates every part of another node comes to each node once, whichever
// of its ranks reads it, in one message with those of its neighbours; or once to each rank.
TEST(NodeCounts, EachPartCrossesNodesOncePerNode) {
  for (Over over : nodes_of_ranks()) {
    for (const bool hierarchical : {true, false}) {
      over.hierarchical = hierarchical;
      const OverNodes ended(sharded(world_size()), over);
      torch::nn::Sequential net = layers();
      DistributedModel model(net);
      auto optimizer = sgd(model.parameters());
      auto step =
          tessera::step([&](torch::Tensor x) { model.backward(net->forward(x).pow(2).mean()); });
      const int ranks = size();
      const int nodes = ranks / over.ranks_of_node;
      const int remote = ranks - over.ranks_of_node; // parts that a node has not
      for (int i = 1; i <= 3; ++i) {
        optimizer.zero_grad();
        step(torch::ones({2, kSide}));
        step(torch::ones({2, kSide}));
        const sharding::PartService::Counts counts = crossings();
        const std::int64_t readers = hierarchical ? nodes : ranks;
        EXPECT_EQ(counts.parts, i * kLayers * readers * remote) << text_of(over);
        EXPECT_EQ(counts.messages, i * kLayers * readers * (hierarchical ? nodes - 1 : remote))
            << text_of(over);
        const auto part_bytes = static_cast<std::int64_t>(kLayer * sizeof(float) / ranks);
        EXPECT_GE(counts.bytes, counts.parts * part_bytes) << text_of(over);
        EXPECT_LT(counts.bytes, counts.parts * (part_bytes + 64)) << text_of(over);
        optimizer.step();
      }
    }
  }
}

// Only what operators read at one moment may exceed the cap: with hierarchical gathers those of all
// ranks of a node.
TEST(NodeCounts, NoMoreThanTheCapIsLive) {
  for (Over over : nodes_of_ranks()) {
    for (const bool hierarchical : {true, false}) {
      for (const std::int64_t room : {1, 2, 5}) {
        over.hierarchical = hierarchical;
        over.live = room * kLayer;
        const OverNodes ended(sharded(world_size(), 2), over);
        torch::nn::Sequential net = layers();
        DistributedModel model(net);
        auto optimizer = sgd(model.parameters());
        auto step =
            tessera::step([&](torch::Tensor x) { model.backward(net->forward(x).pow(2).mean()); });
        for (int i = 0; i < 3; ++i) {
          optimizer.zero_grad();
          step(torch::ones({2, kSide}));
          const std::int64_t readers = hierarchical ? over.ranks_of_node : 1;
          EXPECT_LE(gatherer_of(model).counts().highest_elements, std::max(room, readers) * kLayer)
              << text_of(over);
          barrier();
          EXPECT_LE(gatherer_of(model).counts().live_elements, over.live) << text_of(over);
          barrier();
          optimizer.step();
          EXPECT_EQ(gatherer_of(model).counts().live_elements, 0) << text_of(over);
          barrier();
        }
      }
    }
  }
}

TEST(NodeCounts, TheNextLayersAreGatheredWhileOneComputes) {
  for (const std::int64_t room : {1, 3, 100}) {
    const Over over{.live = room * kLayer};
    const OverNodes ended(sharded(world_size()), over);
    torch::nn::Sequential net = layers();
    DistributedModel model(net);
    auto optimizer = sgd(model.parameters());
    std::vector<std::int64_t> live;
    auto step = tessera::step([&](torch::Tensor x) {
      live.clear();
      for (auto& layer : *net) {
        x = layer.forward(x);
        live.push_back(gatherer_of(model).counts().live_elements / kLayer);
      }
      model.backward(x.pow(2).mean());
    });
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      step(torch::ones({1, kSide}));
      if (i == 0) {
        EXPECT_EQ(gatherer_of(model).counts().ahead, 0); // no order is known yet
      }
      optimizer.step();
    }
    std::vector<std::int64_t> wanted; // behind each layer: itself, what was, and four to come
    for (std::int64_t i = 0; i < kLayers; ++i) {
      wanted.push_back(std::min({room, i + 5, std::int64_t{kLayers}}));
    }
    EXPECT_EQ(live, wanted) << room;
    const sharding::LiveTable::Counts counts = gatherer_of(model).counts();
    if (room == 100) { // but for the first layer of the two steps that know the order
      EXPECT_EQ(counts.ahead, 2 * (kLayers - 1));
      EXPECT_EQ(counts.fetches, 3 * kLayers);
    } else {
      EXPECT_EQ(counts.ahead > 0, room > 1) << room;
    }
  }
}

TEST(NodeCounts, OneNodeGathersNothing) {
  init(sharded(world_size()));
  const Ended ended;
  torch::nn::Sequential net = layers();
  DistributedModel model(net);
  auto step =
      tessera::step([&](torch::Tensor x) { model.backward(net->forward(x).pow(2).mean()); });
  step(torch::ones({2, kSide}));
  EXPECT_EQ(shards_of(model).parameters().gatherer(), nullptr);
  EXPECT_EQ(context().part_service, nullptr);
}

} // namespace
} // namespace tessera::testing
