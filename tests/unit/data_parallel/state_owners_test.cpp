#include "tessera/data_parallel/state_owners.h"

#include <numeric>

#include <gmock/gmock.h>

#include "tests/unit/runtime/pipeline.h"

namespace tessera::data_parallel::testing {
namespace {

using runtime::testing::on_ranks;
using ::testing::ElementsAre;

TEST(BalancedOwners, TheLargestGoesToTheEmptiest) {
  std::vector<std::int64_t> loads(3);
  EXPECT_THAT(balanced_owners({5, 9, 2, 4, 4, 3}, loads), ElementsAre(1, 0, 1, 2, 2, 1));
  EXPECT_THAT(loads, ElementsAre(9, 10, 8));
}

TEST(BalancedOwners, EqualOnesGoRoundAndWhatIsThereCounts) {
  std::vector<std::int64_t> loads{0, 3, 0};
  EXPECT_THAT(balanced_owners({2, 2, 2, 2}, loads), ElementsAre(0, 2, 0, 2));
  EXPECT_THAT(loads, ElementsAre(4, 3, 4));
}

TEST(BalancedOwners, NoRankIsFullerThanTheAverageAndOne) {
  torch::manual_seed(1);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<std::int64_t> elements;
    for (int i = 0; i < 1 + 3 * trial; ++i) {
      elements.push_back(torch::randint(1, 1000, {1}).item<std::int64_t>());
    }
    std::vector<std::int64_t> loads(1 + trial % 7);
    balanced_owners(elements, loads);
    const auto total = std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
    EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), std::int64_t{0}), total);
    EXPECT_LE(
        *std::max_element(loads.begin(), loads.end()),
        total / static_cast<std::int64_t>(loads.size()) +
            *std::max_element(elements.begin(), elements.end()));
  }
}

/// One rank of two with parameters of 6, 5, 4 and 3 elements, the largest frozen.
struct Owners {
  explicit Owners(comm::World& world)
      : group(world.new_group("dp", {0, 1})), control(world.new_group("control", {0, 1})) {
    for (const int size : {6, 5, 4, 3}) {
      parameters.emplace_back(str("p", size), torch::ones({size}).requires_grad_(size < 6));
    }
    owners = std::make_unique<StateOwners>(*group, *control, parameters);
  }
  ParameterSet set(const std::vector<int>& which) const {
    ParameterSet all;
    for (const int i : which) {
      all.insert(parameters[i].second.unsafeGetTensorImpl());
    }
    return all;
  }
  comm::ProcessGroupPtr group;
  comm::ProcessGroupPtr control;
  NamedTensors parameters;
  std::unique_ptr<StateOwners> owners;
};

TEST(StateOwners, StayWhileTheStateIsShared) {
  auto worlds = comm::inproc_worlds(2, {});
  on_ranks(2, [&](int rank) {
    Owners ranks(*worlds[rank]);
    EXPECT_THAT(ranks.owners->owners(), ElementsAre(-1, -1, -1, -1));
    ranks.owners->share(ranks.set({2, 3}));
    EXPECT_THAT(ranks.owners->owners(), ElementsAre(-1, -1, 0, 1));
    // Trained parameters first, beside those that are there; then the frozen one.
    ranks.owners->share(ranks.set({0, 1, 2, 3}));
    EXPECT_THAT(ranks.owners->owners(), ElementsAre(0, 1, 0, 1));
    EXPECT_EQ(ranks.owners->is_elsewhere(ranks.parameters[0].second), rank == 1);
    EXPECT_EQ(ranks.owners->owner_of(torch::ones({6})), -1);
    ranks.owners->share(ranks.set({1}));
    EXPECT_THAT(ranks.owners->owners(), ElementsAre(-1, 1, -1, -1));
  });
}

// Large and small, of two dtypes, and one that is not contiguous.
TEST(SendValues, GivesEveryRankTheOwners) {
  auto worlds = comm::inproc_worlds(3, {});
  on_ranks(3, [&](int rank) {
    const auto group = worlds[rank]->new_group("dp", {0, 1, 2});
    std::vector<OwnedTensor> tensors;
    for (int i = 0; i < 40; ++i) {
      const std::int64_t rows = i % 9 == 0 ? 70000 : 10 + i;
      const auto type = i % 3 == 0 ? at::kDouble : at::kFloat;
      at::Tensor tensor = torch::full({rows, 3}, 100 * rank + i, type).requires_grad_();
      tensors.push_back({i % 10 == 5 ? tensor.detach().t() : tensor, i % 4 % 3});
    }
    send_values(*group, tensors);
    for (int i = 0; i < 40; ++i) {
      EXPECT_TRUE(tensors[i].tensor.eq(100 * tensors[i].owner + i).all().item<bool>()) << i;
    }
  });
}

} // namespace
} // namespace tessera::data_parallel::testing
