// Shard groups over several nodes: parts of other nodes are gathered by messages. With
// same_node_backend "mpi" each rank is a node of its own; hosts of several: over_hosts_test.cpp.
#include "tests/mpi/sharding/support.h"

namespace tessera::testing {
namespace {

Config apart(int degree, int microbatches = 1) {
  Config config = sharded(degree, microbatches);
  config.same_node_backend = "mpi";
  return config;
}

const sharding::Gatherer& gatherer_of(const Model& model) {
  return *shards_of(model).parameters().gatherer();
}

TEST(Nodes, TrainTheNumbersOfOneProcess) {
  for (const int degree : degrees()) {
    for (const std::int64_t live : {std::int64_t{1}, std::int64_t{150}, std::int64_t{1} << 30}) {
      Config config = apart(degree, 2);
      config.sdp_max_live_parameters = live;
      config.sdp_hierarchical_allgather = live != 1;
      const auto make = [] { return Mixed(); };
      const Trained plain = train_plain(make, random_batches(16), 4, 2 * world_size());
      const Trained trained = train_distributed(config, make, random_batches(16), 4);
      expect_same(trained.parameters, plain.parameters, str("degree ", degree, ", ", live), 2e-5);
    }
  }
}

TEST(Nodes, OfAPipeline) {
  if (world_size() < 4) {
    GTEST_SKIP() << "needs 4 ranks";
  }
  Config config = config_of(2, 2);
  config.sharded_data_parallel_degree = 2;
  config.sdp_param_persistence_threshold = 0;
  config.sdp_gradient_clipping = kNoClipping;
  config.same_node_backend = "mpi";
  const auto make = [] { return Control(); };
  const Trained plain = train_plain(make, random_batches(16), 4, world_size());
  const Trained trained = train_distributed(config, make, random_batches(16), 4);
  expect_same(trained.parameters, plain.parameters, "pipeline", 2e-5);
}

// The others are in a collective, or their scripts are done.
TEST(Nodes, ABranchOfOneRankWaitsForNobody) {
  init(apart(world_size()));
  const Ended ended;
  torch::manual_seed(7);
  Block net;
  TensorMap wanted;
  for (const auto& item : net->named_parameters()) {
    wanted[item.key()] = item.value().detach().clone();
  }
  auto model = std::make_unique<DistributedModel<Block>>(net);
  for (int reader = 0; reader < size(); ++reader) {
    if (rank() == reader) {
      EXPECT_TRUE(net->a->weight.t().contiguous().equal(wanted.at("a.weight").t())) << reader;
    }
    barrier();
  }
  if (rank() != 0) {
    model = nullptr; // this rank is done with its model
    net = nullptr;
  }
  barrier();
  if (rank() == 0) {
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().add(0).equal(wanted.at(item.key()))) << item.key();
    }
  }
}

// What is under way when an update begins is not taken for the new values.
TEST(Nodes, AnUpdateIsSeenByAll) {
  init(apart(world_size()));
  const Ended ended;
  torch::manual_seed(7);
  Mixed net;
  DistributedModel model(net);
  TensorMap values = model.state_dict();
  for (int round = 0; round < 5; ++round) {
    for (auto& [name, value] : values) {
      value = value + 1;
    }
    model.load_state_dict(values);
    const torch::NoGradGuard no_grad;
    if (round % size() == rank()) { // the order of this read is expected
      net(random_batches(16)(0).x);
    }
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().add(0).allclose(values.at(item.key()), 0, 1e-5))
          << item.key() << ", round " << round;
    }
  }
}

/// Layers of one matrix each, which a step reads in their order.
torch::nn::Sequential layers(int count, int side) {
  torch::manual_seed(7);
  torch::nn::Sequential net;
  for (int i = 0; i < count; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(side, side).bias(false)));
  }
  return net;
}

TEST(Nodes, TheNextLayersAreGatheredWhileOneComputes) {
  constexpr int kLayers = 8;
  constexpr int kSide = 16;
  constexpr std::int64_t kLayer = kSide * kSide;
  for (const std::int64_t room : {std::int64_t{1}, std::int64_t{3}, std::int64_t{100}}) {
    Config config = apart(world_size());
    config.sdp_max_live_parameters = room * kLayer;
    init(config);
    const Ended ended;
    torch::nn::Sequential net = layers(kLayers, kSide);
    DistributedModel model(net);
    auto optimizer = sgd(model.parameters());
    std::vector<std::int64_t> live;
    auto step = tessera::step([&](torch::Tensor x) {
      live.clear();
      for (auto& layer : *net) {
        x = layer.forward(x);
        live.push_back(gatherer_of(model).live_elements() / kLayer);
      }
      model.backward(x.pow(2).mean());
    });
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      step(torch::ones({1, kSide}));
      EXPECT_LE(gatherer_of(model).highest_elements(), room * kLayer);
      optimizer.step();
      EXPECT_EQ(gatherer_of(model).live_elements(), 0); // of values that are no more
    }
    std::vector<std::int64_t> wanted; // behind each layer: itself, what was, and four to come
    for (std::int64_t i = 0; i < kLayers; ++i) {
      wanted.push_back(std::min({room, i + 5, std::int64_t{kLayers}}));
    }
    EXPECT_EQ(live, wanted) << room;
  }
}

} // namespace
} // namespace tessera::testing
