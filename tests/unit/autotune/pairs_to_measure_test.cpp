#include "tessera/autotune/probe/pairs_to_measure.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::autotune {
namespace {

using testing::ElementsAre;
using testing::Pair;

std::vector<std::string> hosts_of(int hosts, int ranks_each) {
  std::vector<std::string> result;
  for (int host = 0; host < hosts; ++host) {
    result.insert(result.end(), static_cast<std::size_t>(ranks_each), "h" + std::to_string(host));
  }
  return result;
}

TEST(PairsToMeasure, AreAllWhereRanksAreFew) {
  EXPECT_THAT(pairs_to_measure(hosts_of(1, 3), 4), ElementsAre(Pair(0, 1), Pair(0, 2), Pair(1, 2)));
  EXPECT_EQ(pairs_to_measure(hosts_of(1, 4), 4).size(), 6u);
  EXPECT_EQ(pairs_to_measure({"a", "b", "b", "b"}, 4).size(), 6u);
  EXPECT_TRUE(pairs_to_measure(hosts_of(1, 1), 4).empty());
}

TEST(PairsToMeasure, AreThoseOfAFewRanksOfOneHost) {
  EXPECT_THAT(pairs_to_measure(hosts_of(1, 8), 3), ElementsAre(Pair(0, 3), Pair(0, 7), Pair(3, 7)));
  EXPECT_EQ(pairs_to_measure(hosts_of(1, 64), 16).size(), 120u);
  EXPECT_EQ(pairs_to_measure(hosts_of(2, 8), 4).size(), 6u); // two of each host
}

TEST(PairsToMeasure, RanksOfAHostNeedNotFollowEachOther) {
  EXPECT_THAT(
      pairs_to_measure({"a", "b", "a", "b", "a", "b"}, 2),
      ElementsAre(Pair(0, 1), Pair(0, 4), Pair(1, 5)));
}

// Quick and full probes of clusters of many shapes.
TEST(PairsToMeasure, ReachEveryHostInsideAndOutside) {
  for (const int most : {2, 4, 16}) {
    for (const int hosts : {2, 3, 5, 16, 17, 40}) {
      for (const int each : {1, 2, 8}) {
        const auto names = hosts_of(hosts, each);
        const auto pairs = pairs_to_measure(names, most);
        std::set<std::string> inside;
        std::set<std::string> outside;
        for (const auto& [first, second] : pairs) {
          const auto& a = names.at(static_cast<std::size_t>(first));
          const auto& b = names.at(static_cast<std::size_t>(second));
          ASSERT_LT(first, second);
          if (a == b) {
            inside.insert(a);
          } else {
            outside.insert({a, b});
          }
        }
        const auto all = static_cast<std::size_t>(hosts);
        EXPECT_EQ(outside.size(), all) << most << " " << hosts << " x " << each;
        EXPECT_EQ(inside.size(), each > 1 ? all : 0) << most << " " << hosts << " x " << each;
        EXPECT_LE(pairs.size(), static_cast<std::size_t>(most * (most - 1) / 2 + 2 * hosts));
      }
    }
  }
}

} // namespace
} // namespace tessera::autotune
