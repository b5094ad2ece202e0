#include "tessera/planner/without_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Three hosts of two devices; the last one reaches the first over a slow link.
cost::Cluster three_hosts() {
  cost::Cluster cluster = cost::small_cluster(2, 1);
  const char* names[] = {"ant", "bee", "cat"};
  for (std::size_t n = 0; n < 3; ++n) {
    cluster.nodes[n].host = names[n];
  }
  cluster.links = {{.first = 0, .second = 2, .bytes_per_s = 1e8}};
  return cluster;
}

TEST(WithoutHosts, TheOthersKeepWhatIsBetweenThem) {
  const cost::Cluster left = without_hosts(three_hosts(), {"bee"});
  ASSERT_EQ(left.nodes.size(), 2u);
  EXPECT_EQ(left.nodes[0].host, "ant");
  EXPECT_EQ(left.nodes[1].host, "cat");
  EXPECT_EQ(left.device_count(), 4);
  ASSERT_EQ(left.links.size(), 1u);
  EXPECT_EQ(left.links[0].first, 0);
  EXPECT_EQ(left.links[0].second, 1);
  EXPECT_TRUE(without_hosts(three_hosts(), {"cat"}).links.empty());
  EXPECT_EQ(without_hosts(three_hosts(), {}).nodes.size(), 3u);
}

TEST(WithoutHosts, SeveralAndNumbers) {
  EXPECT_EQ(without_hosts(three_hosts(), {"ant", "cat"}).nodes[0].host, "bee");
  EXPECT_EQ(without_hosts(three_hosts(), {"1"}).nodes[1].host, "cat");
  cost::Cluster numbered = three_hosts();
  numbered.nodes[0].host = "2"; // a name goes before a number
  EXPECT_EQ(without_hosts(numbered, {"2"}).nodes[0].host, "bee");
}

TEST(WithoutHosts, HostsThatAreNotThereAreNamed) {
  EXPECT_THAT(
      [] { without_hosts(three_hosts(), {"dog"}); },
      ThrowsMessage<ConfigError>(HasSubstr("\"dog\"; write one of the hosts of the cluster: ant, "
                                           "bee, cat")));
  EXPECT_THAT(
      [] { without_hosts(three_hosts(), {"3"}); }, ThrowsMessage<ConfigError>(HasSubstr("\"3\"")));
  EXPECT_THAT(
      [] {
        without_hosts(three_hosts(), {"0", "1", "2"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("no host is left")));
}

TEST(WithoutHosts, OfManyHostsSixteenAreNamed) {
  const auto all = [](int nodes) {
    try {
      without_hosts(cost::small_cluster(nodes, 0), {"dog"});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(
      all(16),
      testing::EndsWith("of the cluster: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15"));
  EXPECT_THAT(all(17), testing::EndsWith(", 14, 15, ..."));
}

// What is planned without a host is for the ranks that are left, and runs.
TEST(WithoutHosts, IsPlannedAnew) {
  cost::Cluster cluster = cost::small_cluster(2, 0);
  cluster.nodes[0].host = "ant";
  cluster.nodes[1].host = "bee";
  auto model = cost::small_model(4);
  SearchOptions options;
  options.runnable_only = true;
  const auto before = search(model, cluster, options);
  const auto after = search(model, without_hosts(cluster, {"bee"}), options);
  EXPECT_EQ(before.best.front().strategy.devices(), 4);
  EXPECT_EQ(after.best.front().strategy.devices(), 2);
  EXPECT_FALSE(not_runnable(after.best.front(), model));
  EXPECT_GT(after.best.front().seconds(), before.best.front().seconds());
}

} // namespace
} // namespace tessera::planner
