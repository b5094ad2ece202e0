#include <atomic>
#include <random>

#include <gmock/gmock.h>

#include "tessera/runtime/order_channel.h"

#include "tests/unit/runtime/pipeline.h"

namespace tessera::runtime::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong = std::chrono::seconds(60);

transport::Options small_buffer() {
  transport::Options options;
  options.buffer_bytes = 1 << 20;
  return options;
}

/// The ranks of one pipeline.
struct Pipeline {
  Pipeline(int pp, int microbatches, milliseconds timeout = kLong)
      : transports(transport::make_inproc_transports(pp, small_buffer())) {
    for (int i = 0; i < pp; ++i) {
      ranks.push_back(std::make_unique<Rank>(pp, i, microbatches, *transports[i], timeout));
    }
  }
  std::vector<transport::TransportPtr> transports; // outlive the ranks
  std::vector<std::unique_ptr<Rank>> ranks;
};

torch::Tensor rows(int microbatches) {
  return torch::arange(2 * microbatches * kWidth)
             .view({2 * microbatches, kWidth})
             .to(torch::kFloat) /
         10;
}

void expect_plain_gradients(const Pipeline& pipeline, const torch::Tensor& x) {
  Net plain = make_net();
  plain(x).pow(2).mean().backward();
  std::map<std::string, torch::Tensor> wanted;
  for (const auto& item : plain->named_parameters()) {
    wanted[item.key()] = item.value().grad();
  }
  std::size_t seen = 0;
  for (const auto& rank : pipeline.ranks) {
    for (const auto& [name, parameter] : rank->table.local_parameters()) {
      ASSERT_TRUE(parameter.grad().defined()) << name;
      EXPECT_TRUE(torch::allclose(parameter.grad(), wanted.at(name), 1e-5, 1e-6)) << name;
      ++seen;
    }
  }
  EXPECT_EQ(seen, wanted.size());
}

TEST(Server, GradientsOfAPipelineEqualThePlainOnes) {
  for (const int pp : {1, 2, 3}) {
    Pipeline pipeline(pp, 4);
    const auto x = rows(4);
    on_ranks(pp, [&](int rank) {
      const auto losses = pipeline.ranks[rank]->step(1, x);
      EXPECT_EQ(losses.size(), 4U); // on every rank
      EXPECT_GT(losses[3].toTensor().item<float>(), 0);
    });
    expect_plain_gradients(pipeline, x);
  }
}

TEST(Server, AStepAfterAFailedOneIsClean) {
  Pipeline pipeline(3, 4);
  const auto x = rows(4);
  std::atomic<int> calls{0};
  pipeline.ranks[2]->net->outer->inner->before = [&] {
    if (++calls == 3) { // while others of its kind are under way
      throw std::runtime_error("planted fault");
    }
  };
  on_ranks(3, [&](int rank) {
    Rank& self = *pipeline.ranks[rank];
    try {
      self.step(1, x);
      ADD_FAILURE() << "rank " << rank << " noticed nothing";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2, module 'outer.inner'"));
      EXPECT_THAT(error.what(), HasSubstr("planted fault"));
    }
    for (const auto& [name, parameter] : self.table.local_parameters()) {
      torch::Tensor(parameter).mutable_grad() = torch::Tensor();
    }
    self.step(2, x);
  });
  expect_plain_gradients(pipeline, x);
}

// Messages of a step that is over must not reach the next one.
TEST(Server, LateMessagesAreDropped) {
  Pipeline pipeline(2, 2);
  const auto x = rows(2);
  Fields late;
  late.kind = ServerMessage::kEnd;
  late.failed = true;
  late.serial = 4;
  pipeline.transports[0]->send(1, to_header(late), c10::IValue("stale"));
  late.kind = ServerMessage::kRequest;
  late.module = 999;
  pipeline.transports[0]->send(1, to_header(late), c10::IValue());
  on_ranks(2, [&](int rank) { pipeline.ranks[rank]->step(5, x); });
  expect_plain_gradients(pipeline, x);
}

TEST(Server, TimeoutNamesTheRankAtFault) {
  Pipeline pipeline(3, 1, milliseconds(400));
  // Longer on the rank between, so that rank 0 is the one that gives up.
  pipeline.ranks[1]->context.timeout = std::chrono::seconds(3);
  const auto x = rows(1);
  on_ranks(3, [&](int rank) {
    if (rank == 2) {
      return; // never serves
    }
    try {
      pipeline.ranks[rank]->step(1, x);
      ADD_FAILURE() << "rank " << rank << " noticed nothing";
    } catch (const CommError& error) {
      const std::string text = error.what();
      EXPECT_THAT(text, HasSubstr("rank 2 gives no answer"));
      EXPECT_THAT(text, HasSubstr("module 'outer.inner' on rank 2"));
      EXPECT_THAT(text, HasSubstr("(for module 'outer', microbatch 0, forward)"));
      if (rank == 0) {
        EXPECT_THAT(text, HasSubstr("module 'outer' on rank 1"));
        EXPECT_THAT(text, HasSubstr("rank 1 answers: it waits for"));
      }
    }
  });
}

using Ran = std::tuple<std::string, std::string, int>;

// What a rank ran, in its order.
std::vector<Ran> order_of(Rank& rank) {
  std::vector<Ran> list;
  for (const auto& event : rank.recorder.take()) {
    list.emplace_back(event.name, event.category, event.microbatch);
  }
  return list;
}

TEST(Server, ReplicasRunTheirTasksInOneOrder) {
  constexpr int kPipeline = 2;
  constexpr int kReplicas = 2;
  constexpr int kMicrobatches = 6;
  std::vector<std::unique_ptr<Pipeline>> replicas;
  for (int i = 0; i < kReplicas; ++i) {
    replicas.push_back(std::make_unique<Pipeline>(kPipeline, kMicrobatches));
  }
  // One order for each pipeline rank, over that rank of all replicas.
  comm::WorldOptions options;
  std::vector<std::vector<comm::WorldPtr>> worlds;
  std::vector<std::vector<transport::TransportPtr>> order_transports;
  for (int p = 0; p < kPipeline; ++p) {
    worlds.push_back(comm::inproc_worlds(kReplicas, options));
    order_transports.push_back(transport::make_inproc_transports(kReplicas, small_buffer()));
  }
  const auto x = rows(kMicrobatches);
  std::vector<std::vector<Ran>> orders(kPipeline * kReplicas);
  on_ranks(kPipeline * kReplicas, [&](int thread) {
    const int replica = thread / kPipeline;
    const int pp_rank = thread % kPipeline;
    Rank& rank = *replicas[replica]->ranks[pp_rank];
    const auto group = worlds[pp_rank][replica]->new_group("order", {0, 1});
    OrderChannel order(*group, *order_transports[pp_rank][replica]);
    rank.context.order = &order;
    // Every thread dawdles its own way, so requests come in other orders.
    std::mt19937 random(static_cast<unsigned>(thread));
    const auto dawdle = [&random] {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    };
    rank.net->near->before = dawdle;
    rank.net->outer->inner->before = dawdle;
    for (int step = 1; step <= 5; ++step) {
      rank.step(step, x);
    }
    orders[thread] = order_of(rank);
    rank.server.reset(); // before its order
  });
  for (int p = 0; p < kPipeline; ++p) {
    EXPECT_GT(orders[p].size(), 5U * kMicrobatches);
    EXPECT_EQ(orders[p], orders[kPipeline + p]) << "pp rank " << p;
  }
}

} // namespace
} // namespace tessera::runtime::testing
