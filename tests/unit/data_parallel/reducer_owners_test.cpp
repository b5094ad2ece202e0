// Averages that go to their owners alone.
#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/data_parallel/gradient_reducer.h"
#include "tessera/tensor/named_tensors.h"

#include "tests/unit/runtime/pipeline.h"

namespace tessera::data_parallel::testing {
namespace {

using runtime::testing::on_ranks;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kParameters = 6;

/// One rank of three: parameter i has ten elements and belongs to rank i % 3.
struct OwnedReplica {
  OwnedReplica(comm::World& world, GradientReducer::Options options, at::ScalarType type)
      : rank(world.rank()),
        group(world.new_group("dp", {0, 1, 2})),
        control(world.new_group("control", {0, 1, 2})) {
    std::vector<int> owners;
    for (int i = 0; i < kParameters; ++i) {
      parameters.emplace_back(str("p", i), torch::ones({5, 2}).to(type).requires_grad_());
      owners.push_back(owner(i));
    }
    reducer = std::make_unique<GradientReducer>(world, *group, *control, parameters, options);
    reducer->set_owners(owners);
  }
  static int owner(int i) {
    return i % kRanks;
  }
  bool owns(int i) const {
    return owner(i) == rank;
  }
  void add(int i, double factor) {
    (parameters[i].second * factor).sum().backward();
  }
  bool has(int i) const {
    return parameters[i].second.grad().defined();
  }
  double gradient(int i) const {
    return parameters[i].second.grad().to(at::kDouble).mean().item<double>();
  }
  void expect(int i, double value) const {
    EXPECT_EQ(has(i), owns(i)) << i;
    if (owns(i)) {
      EXPECT_NEAR(gradient(i), value, 1e-6) << i;
    }
  }
  void zero() {
    for (auto& [name, parameter] : parameters) {
      parameter.mutable_grad() = at::Tensor();
    }
  }
  int rank;
  comm::ProcessGroupPtr group;
  comm::ProcessGroupPtr control;
  NamedTensors parameters;
  std::unique_ptr<GradientReducer> reducer;
};

void on_owners(const std::function<void(OwnedReplica&)>& body, at::ScalarType type = at::kFloat) {
  auto worlds = comm::inproc_worlds(kRanks, {});
  GradientReducer::Options options;
  options.bucket_bytes = 40; // one parameter of f32
  on_ranks(kRanks, [&](int rank) {
    OwnedReplica replica(*worlds[rank], options, type);
    body(replica);
  });
}

TEST(OwnedGradients, AreTheAverageOnTheirOwner) {
  on_owners([](OwnedReplica& replica) {
    for (int step = 0; step < 4; ++step) {
      replica.zero();
      replica.reducer->begin(true);
      for (int i = 0; i < kParameters - 1; ++i) {
        replica.add(i, replica.rank + i); // mean: 1 + i
      }
      if (step == 2) {
        replica.add(0, 10); // after the bucket has left
      }
      EXPECT_TRUE(replica.reducer->finish({}));
      for (int i = 0; i < kParameters - 1; ++i) {
        replica.expect(i, 1 + i + (step == 2 && i == 0 ? 10 : 0));
      }
      EXPECT_FALSE(replica.has(kParameters - 1)); // none has one: stays without
      EXPECT_EQ(replica.reducer->unaveraged_gradient(), "");
    }
  });
}

// In the second step the order is known: a complete gradient leaves during the backward.
TEST(OwnedGradients, LeaveWhileTheStepRuns) {
  on_owners([](OwnedReplica& replica) {
    for (int step = 0; step < 2; ++step) {
      replica.zero();
      replica.reducer->begin(true);
      const auto before = replica.group->traffic().calls.load();
      for (int i = kParameters - 1; i >= 0; --i) {
        replica.add(i, 1);
        const auto left = replica.group->traffic().calls.load() - before;
        EXPECT_EQ(left, step == 0 ? 0 : kParameters - i);
        EXPECT_EQ(replica.has(i), step == 0);
      }
      replica.reducer->finish({});
    }
  });
}

TEST(OwnedGradients, AStepAddsToWhatIsThere) {
  on_owners([](OwnedReplica& replica) {
    for (int step = 0; step < 3; ++step) {
      replica.reducer->begin(true);
      replica.add(0, replica.rank); // mean 1
      if (step == 1) {
        replica.add(1, 3); // by no other step
      }
      replica.reducer->finish({});
      replica.expect(0, step + 1);
      if (step > 0) {
        replica.expect(1, 3);
      }
    }
    replica.reducer->begin(true);
    replica.zero();
    replica.reducer->forget_averages(nullptr, /*set_to_none=*/true);
    replica.add(0, 6);
    replica.reducer->finish({});
    replica.expect(0, 6);
    EXPECT_FALSE(replica.has(1));
  });
}

TEST(OwnedGradients, OfSixteenBitsAreRoundedOnce) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    on_owners(
        [](OwnedReplica& replica) {
          for (int step = 0; step < 2; ++step) {
            replica.zero();
            replica.reducer->begin(true);
            for (int i = 0; i < kParameters; ++i) {
              replica.add(i, replica.rank == 0 ? 1.0078125 : 257 + i);
            }
            replica.reducer->finish({});
            for (int i = 0; i < kParameters; ++i) {
              EXPECT_EQ(replica.has(i), replica.owns(i));
              if (!replica.owns(i)) {
                continue;
              }
              const auto of = replica.parameters[i].second.scalar_type();
              const auto given = [&](double value) {
                return at::full({}, value).to(of).to(at::kFloat);
              };
              const at::Tensor sum = given(1.0078125) + given(257 + i) + given(257 + i);
              const double mean = (sum * static_cast<float>(1.0 / 3)).to(of).item<double>();
              EXPECT_EQ(replica.gradient(i), mean);
            }
          }
        },
        type);
  }
}

TEST(OwnedGradients, OwnersMayChangeBetweenSteps) {
  on_owners([](OwnedReplica& replica) {
    const auto step = [&] {
      replica.reducer->begin(true);
      for (int i = 0; i < kParameters; ++i) {
        replica.add(i, replica.rank);
      }
      replica.reducer->finish({});
    };
    replica.reducer->set_owners(std::vector<int>(kParameters, -1));
    step();
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_NEAR(replica.gradient(i), 1, 1e-6); // on every rank
    }
    replica.reducer->set_owners({0, 1, 2, -1, 1, 1});
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_EQ(replica.has(i), i == 3 || replica.rank == (i > 3 ? 1 : i)) << i;
    }
    step();
    EXPECT_NEAR(replica.gradient(3), 2, 1e-6);
    if (replica.rank == 1) {
      EXPECT_NEAR(replica.gradient(4), 2, 1e-6);
    }
    // What only an owner has goes when all are to have it.
    replica.reducer->set_owners(std::vector<int>(kParameters, -1));
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_EQ(replica.has(i), i == 3) << i;
    }
  });
}

TEST(OwnedGradients, AFailedStepLeavesNoRankWaiting) {
  on_owners([](OwnedReplica& replica) {
    for (int step = 0; step < 3; ++step) {
      replica.zero();
      replica.reducer->begin(true);
      replica.add(0, 1);
      if (replica.rank != 1 || step != 1) {
        replica.add(1, 1);
      }
      if (step != 1) {
        replica.reducer->finish({});
        replica.expect(0, 1);
        replica.expect(1, 1);
        continue;
      }
      std::string error;
      try {
        replica.reducer->finish(
            replica.rank == 1 ? std::optional<std::string>("rank 1 failed") : std::nullopt);
      } catch (const UserError& thrown) {
        error = thrown.what();
      }
      EXPECT_THAT(error, HasSubstr("rank 1 failed"));
    }
  });
}

} // namespace
} // namespace tessera::data_parallel::testing
