#include "tessera/operations/stages.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "tests/unit/operations/graphs.h"

namespace tessera::operations {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Stages, AChainThatComesBackVisitsARankTwice) {
  const Graph graph = chain({1, 1, 1, 1});
  const auto stages = make_stages(graph, make_units(graph), {0, 1, 1, 0});
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_EQ(stages[0].part, 0);
  EXPECT_THAT(stages[1].operations, ElementsAre(1, 2));
  EXPECT_THAT(stages[1].takes, ElementsAre(0));
  EXPECT_THAT(stages[1].gives, ElementsAre(2));
  EXPECT_EQ(stages[2].part, 0);
  EXPECT_THAT(stages[2].gives, ElementsAre(3)) << "the model returns it";
}

TEST(Stages, BranchesOfOneRankRunInOneGo) {
  // Two chains, called in turns: a0 b0 a1 b1, joined at the end.
  GraphOf made;
  const int a0 = made.add({}, 1);
  const int b0 = made.add({}, 1);
  const int a1 = made.add({a0}, 1);
  const int b1 = made.add({b0}, 1);
  made.graph.results = {made.add({a1, b1}, 1)};
  const auto stages = make_stages(made.graph, make_units(made.graph), {0, 1, 0, 1, 0});
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_THAT(stages[0].operations, ElementsAre(a0, a1));
  EXPECT_THAT(stages[1].operations, ElementsAre(b0, b1));
}

TEST(Stages, ALoneTensorMadeEarlyCostsNoVisit) {
  // The last rank makes a mask from nothing.
  GraphOf made;
  const int mask = made.add({}, 1);
  const int a = made.add({}, 1);
  const int b = made.add({a}, 1);
  made.graph.results = {made.add({b, mask}, 1)};
  const auto stages = make_stages(made.graph, make_units(made.graph), {2, 0, 1, 2});
  EXPECT_EQ(stages.size(), 3U);
}

TEST(Stages, EveryOperationOnceAfterAllThatItNeeds) {
  // A ladder of two rails with rungs, over three parts in a pattern that crosses often.
  GraphOf made;
  int left = made.add({}, 1);
  int right = made.add({}, 1);
  for (int i = 0; i < 20; ++i) {
    left = made.add({left, right}, 1);
    right = made.add({right}, 1);
  }
  made.graph.results = {left};
  std::vector<int> parts;
  for (std::size_t i = 0; i < made.graph.operations.size(); ++i) {
    parts.push_back(static_cast<int>(i * i % 3));
  }
  std::vector<int> seen;
  for (const Stage& stage : make_stages(made.graph, make_units(made.graph), parts)) {
    for (const int operation : stage.operations) {
      EXPECT_EQ(parts[operation], stage.part);
      for (const int before : predecessors(made.graph, operation)) {
        EXPECT_THAT(seen, ::testing::Contains(before));
      }
      seen.push_back(operation);
    }
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), parts.size());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST(Stages, OfNothing) {
  EXPECT_THAT(make_stages({}, make_units({}), {}), IsEmpty());
}

} // namespace
} // namespace tessera::operations
