// Training over shard groups on several nodes gives the numbers of one process, the same bits in
// every run and however much is live.
#include "tests/mpi/sharding/nodes.h"

#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 3;

/// Learns as `train_plain` does. What operators read is compared with the gathered state behind
/// every update, so that nothing of an update before stays.
template <typename MakeNet>
TensorMap trained_over(const Over& over, const Config& config, MakeNet make_net) {
  const OverNodes ended(config, over);
  torch::manual_seed(dp_rank() == 0 ? 7 : 8);
  auto net = make_net();
  DistributedModel model(net);
  auto optimizer = sgd(model.parameters());
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    const auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (int i = 0; i < kSteps; ++i) {
    const Batch mine = part_of(random_batches(16)(i), data_size(), data_rank());
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
    if (pp_size() == 1) {
      const torch::NoGradGuard no_grad;
      const TensorMap state = model.state_dict();
      for (const auto& item : net->named_parameters()) {
        if (state.contains(item.key())) {
          EXPECT_TRUE(item.value().add(0).equal(state.at(item.key())))
              << item.key() << " behind step " << i << ", " << text_of(over);
        }
      }
    }
  }
  return model.state_dict();
}

void expect_bits(const TensorMap& got, const TensorMap& wanted, const std::string& what) {
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(got.at(name).equal(tensor)) << what << ", " << name;
  }
}

/// Ways of gathering, the first of them twice.
std::vector<Over> ways_over(const Over& nodes) {
  std::vector<Over> ways(5, nodes);
  ways[2].live = 150;
  ways[3].live = 1;
  ways[4].live = 150;
  ways[4].hierarchical = false;
  return ways;
}

TEST(Nodes, TrainTheNumbersOfOneProcess) {
  const auto make_net = [] { return Mixed(); };
  const Trained plain = train_plain(make_net, random_batches(16), kSteps, 2 * world_size());
  for (const Over& nodes : nodes_of_ranks()) {
    TensorMap first;
    for (const Over& over : ways_over(nodes)) {
      const TensorMap trained = trained_over(over, sharded(world_size(), 2), make_net);
      if (first.empty()) {
        first = trained;
        expect_same(first, plain.parameters, text_of(over), 2e-5);
      }
      expect_bits(trained, first, text_of(over));
    }
  }
}

// Two groups, each over two nodes.
TEST(Nodes, OfSeveralGroups) {
  const auto make_net = [] { return Mixed(); };
  const Trained plain = train_plain(make_net, random_batches(16), kSteps, world_size());
  for (const bool hierarchical : {true, false}) {
    const Over over{.hierarchical = hierarchical, .live = 150};
    expect_same(trained_over(over, sharded(2), make_net), plain.parameters, text_of(over), 2e-5);
  }
}

TEST(Nodes, OfEveryFlow) {
  for_every_flow([](const std::string& name, auto make_net) {
    const Trained plain = train_plain(make_net, random_batches(16), kSteps, world_size());
    for (Over over : nodes_of_ranks()) {
      over.hierarchical = !over.in_turn;
      over.live = 200;
      expect_same(
          trained_over(over, sharded(world_size()), make_net),
          plain.parameters,
          str(name, ", ", text_of(over)),
          2e-5);
    }
  });
}

TEST(Nodes, OfFlowsThatDifferBetweenRanks) {
  const auto trained = [](int degree, const Over& over) {
    const OverNodes ended(sharded(degree, 2), over);
    return trained_by_rank();
  };
  for (Over over : nodes_of_ranks()) {
    const TensorMap plain = trained(1, over);
    for (const bool hierarchical : {true, false}) {
      for (const std::int64_t live : {std::int64_t{1}, std::int64_t{100}}) {
        over.hierarchical = hierarchical;
        over.live = live;
        expect_same(trained(world_size(), over), plain, text_of(over), 2e-6);
      }
    }
  }
}

TEST(Nodes, OfRecomputedActivations) {
  const auto make_net = [] {
    Tied net;
    set_activation_checkpointing(net->body, {.strategy = "each"});
    return net;
  };
  const Trained plain =
      train_plain([] { return Tied(); }, random_batches(16), kSteps, 2 * world_size());
  for (Over over : nodes_of_ranks()) {
    over.live = 100;
    expect_same(
        trained_over(over, sharded(world_size(), 2), make_net),
        plain.parameters,
        text_of(over),
        2e-5);
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
  config.reproducible = true;
  for_every_flow([&](const std::string& name, auto make_net) {
    const Trained plain = train_plain(make_net, random_batches(16), kSteps, world_size());
    for (Over over : nodes_of_ranks()) {
      over.hierarchical = !over.in_turn;
      over.live = over.ranks_of_node == 1 ? 100 : over.live;
      const TensorMap first = trained_over(over, config, make_net);
      const std::string what = str(name, ", ", text_of(over));
      expect_same(first, plain.parameters, what, 2e-5);
      if (name == "branches") {
        expect_bits(trained_over(over, config, make_net), first, "again: " + what);
      }
    }
  });
}

// The others are in a collective, or their scripts are done.
TEST(Nodes, ABranchOfOneRankWaitsForNobody) {
  for (const Over& over : nodes_of_ranks()) {
    const OverNodes ended(sharded(world_size()), over);
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
}

TEST(Nodes, ALoadIsSeenByAll) {
  for (const Over& over : nodes_of_ranks()) {
    const OverNodes ended(sharded(world_size()), over);
    torch::manual_seed(7);
    Mixed net;
    DistributedModel model(net);
    TensorMap values = model.state_dict();
    for (int round = 0; round < 4; ++round) {
      for (auto& [name, value] : values) {
        value = value + 1;
      }
      model.load_state_dict(values);
      const torch::NoGradGuard no_grad;
      if (round % size() == rank()) { // the order of this read is expected
        net(random_batches(16)(0).x);
      }
      for (const auto& item : net->named_parameters()) {
        EXPECT_TRUE(item.value().add(0).equal(values.at(item.key())))
            << item.key() << ", round " << round << ", " << text_of(over);
      }
    }
  }
}

// Two models of one process, of which one goes before the other; updates by closures.
TEST(Nodes, OfTwoModels) {
  const auto train = [](int degree, const Over& over) {
    const OverNodes ended(sharded(degree), over);
    torch::manual_seed(7);
    Block front;
    Block back;
    DistributedModel second(back);
    auto second_optimizer = sgd(second.parameters());
    TensorMap first_state;
    {
      DistributedModel first(front);
      auto first_optimizer = sgd(first.parameters());
      auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
        const auto loss = torch::mse_loss(second(first(x)), y);
        second.backward(loss);
        return loss;
      });
      for (int i = 0; i < kSteps; ++i) {
        const Batch mine = mine_of(random_batches(16)(i));
        second_optimizer.zero_grad();
        first_optimizer.step([&] {
          first_optimizer.zero_grad();
          return train_step(mine.x, mine.y).reduce_mean();
        });
        second_optimizer.step();
      }
      first_state = first.state_dict();
    }
    TensorMap state = second.state_dict();
    for (const auto& [name, tensor] : first_state) {
      state["first." + name] = tensor;
    }
    return state;
  };
  for (const Over& over : nodes_of_ranks()) {
    expect_same(train(world_size(), over), train(1, over), text_of(over), 2e-5);
  }
}

// Masters of 16 bits and their state; the model has trained something else before it loads.
TEST(Nodes, ResumeFromACheckpoint) {
  for (Over over : nodes_of_ranks()) {
    for (const bool full : {false, true}) {
      over.hierarchical = full;
      const SharedFolder folder;
      const auto train = [&](bool resumes) {
        const OverNodes ended(sharded(world_size()), over);
        torch::manual_seed(7);
        Mixed net;
        net->to(torch::kBFloat16);
        DistributedModel model(net);
        DistributedOptimizer optimizer(
            torch::optim::AdamW(model.parameters(), torch::optim::AdamWOptions(0.01)));
        auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
          model.backward((model(x.to(torch::kBFloat16)) - y).pow(2).mean());
        });
        const auto learn = [&](int batch) {
          const Batch mine = mine_of(random_batches(16)(batch));
          optimizer.zero_grad();
          train_step(mine.x, mine.y);
          optimizer.step();
        };
        learn(resumes ? 7 : 0);
        if (resumes) {
          const torch::NoGradGuard no_grad;
          net->scale.add(0); // gathers what the load is going to change
          EXPECT_TRUE(load(model, optimizer, folder.path()));
        } else {
          save(model, optimizer, folder.path(), "one", {.full = full});
        }
        learn(1);
        return model.state_dict();
      };
      const TensorMap uninterrupted = train(false);
      expect_bits(train(true), uninterrupted, str(text_of(over), full ? ", full" : ""));
    }
  }
}

TEST(Nodes, ReadingAfterShutdownIsAnError) {
  for (const Over& over : nodes_of_ranks()) {
    torch::manual_seed(7);
    Block net;
    {
      const OverNodes ended(sharded(world_size()), over);
      const DistributedModel model(net);
    }
    EXPECT_THAT(
        error_of<UserError>([&] { net->a->weight.add(0); }),
        ::testing::AllOf(
            ::testing::HasSubstr("'a.weight'"), ::testing::HasSubstr("after tessera::shutdown")));
  }
}

} // namespace
} // namespace tessera::testing
