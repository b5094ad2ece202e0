#include "tessera/simulator/network.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::simulator {
namespace {

TEST(Network, FlowsOnALinkShareItEvenly) {
  Network network({10});
  network.start(0, 100, {0}, 1, 1e9); // alone until 4: 40 of 100
  EXPECT_DOUBLE_EQ(network.next_end(), 10);
  network.start(4, 15, {0}, 1, 1e9); // both at 5 a second
  EXPECT_DOUBLE_EQ(network.next_end(), 7);
  EXPECT_EQ(network.end_next(), 1);
  EXPECT_DOUBLE_EQ(network.next_end(), 11.5); // 45 left at 10 a second
  EXPECT_EQ(network.end_next(), 0);
  EXPECT_GT(network.next_end(), 1e300);
}

TEST(Network, WeightAndLimitBoundARate) {
  Network network({12, 100});
  network.start(0, 4, {0, 1}, 3, 1e9); // three streams of 4 each
  EXPECT_DOUBLE_EQ(network.next_end(), 1);
  network.start(0, 8, {}, 1, 2);
  EXPECT_EQ(network.end_next(), 0);
  EXPECT_DOUBLE_EQ(network.next_end(), 4);
}

TEST(Network, ALinkWithoutLimitBoundsNothing) {
  Network network({std::numeric_limits<double>::infinity(), 10});
  network.start(0, 40, {0, 1}, 1, 1e9);
  network.start(0, 40, {0}, 1, 4); // by its own limit
  EXPECT_DOUBLE_EQ(network.next_end(), 4);
  EXPECT_EQ(network.end_next(), 0);
  EXPECT_DOUBLE_EQ(network.next_end(), 10);
}

// Three flows share link 0, and each has one of links 1 to 3 with a faster flow: one that stands
// for all three has the bits of each, also where rates are thirds and sevenths.
TEST(Network, OneFlowStandsForSeveralThatAreAlike) {
  const std::vector<double> capacity = {7.3, 4.9, 4.9, 4.9};
  Network all(capacity);
  for (const int link : {1, 2, 3}) {
    all.start(0, 10, {0, link}, 1, 1e9);
    all.start(0, 7, {link}, 6, 1e9);
  }
  Network one(capacity);
  one.start(0, 10, {{0, 3}, {1, 1}}, 1e9);
  one.start(0, 7, {{1, 6}}, 1e9);
  for (int flow = 0; flow < 2; ++flow) {
    EXPECT_EQ(one.rate(flow), all.rate(flow));
    EXPECT_EQ(one.rate(flow), all.rate(flow + 4));
  }
  EXPECT_EQ(one.next_end(), all.next_end());
  one.end_next();
  for (int i = 0; i < 3; ++i) {
    all.end_next();
  }
  EXPECT_EQ(one.next_end(), all.next_end());
}

TEST(Network, WhatASlowFlowLeavesBelongsToTheOthers) {
  Network network({10, 1});
  const int slow = network.start(0, 100, {0, 1}, 1, 1e9); // the second link bounds it
  const int other = network.start(0, 90, {0}, 1, 1e9);
  const int bounded = network.start(0, 100, {0}, 2, 2);
  EXPECT_DOUBLE_EQ(network.rate(slow), 1);
  EXPECT_DOUBLE_EQ(network.rate(bounded), 2);
  EXPECT_DOUBLE_EQ(network.rate(other), 5);
  EXPECT_DOUBLE_EQ(network.next_end(), 18);
  EXPECT_EQ(network.end_next(), other);
  EXPECT_DOUBLE_EQ(network.rate(slow), 1);
}

// A flow as it was started.
struct Started {
  std::vector<int> links = {};
  int weight = 1;
  double limit = 0;
  int id = 0;
};

// A network whose rates are compared with the definition of max-min fairness.
class Compared {
 public:
  explicit Compared(std::vector<double> capacity)
      : network(capacity), capacity_(std::move(capacity)) {}

  // Returns the number of the flow.
  int start(double now, double bytes, Started flow) {
    flow.id = network.start(now, bytes, flow.links, flow.weight, flow.limit);
    flows_.push_back(flow);
    return flow.id;
  }

  // Returns when the flow ended that ends next.
  double end_next() {
    const double now = network.next_end();
    const int ended = network.end_next();
    std::erase_if(flows_, [&](const Started& one) { return one.id == ended; });
    return now;
  }

  // Every flow is at its limit, or has a full link on which no stream is faster.
  void expect_fair(unsigned seed) {
    std::vector<double> used(capacity_.size(), 0);
    std::vector<double> fastest(capacity_.size(), 0);
    for (const Started& flow : flows_) {
      const double rate = network.rate(flow.id);
      EXPECT_LE(rate, flow.limit * (1 + 1e-9)) << seed;
      for (const int link : flow.links) {
        const auto at = static_cast<std::size_t>(link);
        used[at] += rate * flow.weight;
        fastest[at] = std::max(fastest[at], rate);
      }
    }
    for (std::size_t link = 0; link < capacity_.size(); ++link) {
      EXPECT_LE(used[link], capacity_[link] * (1 + 1e-9)) << seed;
    }
    for (const Started& flow : flows_) {
      const double rate = network.rate(flow.id);
      const bool bounded = std::any_of(flow.links.begin(), flow.links.end(), [&](int link) {
        const auto at = static_cast<std::size_t>(link);
        return used[at] > capacity_[at] * (1 - 1e-9) && fastest[at] < rate * (1 + 1e-9);
      });
      EXPECT_TRUE(bounded || rate > flow.limit * (1 - 1e-9)) << seed << " flow " << flow.id;
    }
  }

  Network network;

 private:
  std::vector<double> capacity_;
  std::vector<Started> flows_;
};

// Whole numbers from a seed.
class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}

  int operator()(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  std::vector<double> several(std::size_t count, int least, int most) {
    std::vector<double> numbers(count);
    for (double& one : numbers) {
      one = (*this)(least, most);
    }
    return numbers;
  }
  Started flow_over(std::vector<int> links) {
    Started flow{.links = std::move(links)};
    flow.weight = (*this)(1, 3);
    flow.limit = (*this)(1, 60);
    return flow;
  }

 private:
  std::mt19937 random_;
};

TEST(Network, RatesOfRandomFlowsAreMaxMinFair) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Draws from(seed);
    const int count = from(1, 8);
    Compared compared(from.several(static_cast<std::size_t>(count), 1, 100));
    double now = 0;
    for (int i = 0; i < 20; ++i) {
      std::set<int> links;
      for (int k = from(1, 4); k > 0; --k) {
        links.insert(from(0, count - 1));
      }
      const Started flow = from.flow_over({links.begin(), links.end()});
      compared.start(now, from(1, 1000), flow);
      compared.expect_fair(seed);
      if (from(0, 1) == 1 || i > 15) {
        now = compared.end_next();
        compared.expect_fair(seed);
      }
    }
  }
}

TEST(Network, RatesOfManyLinksAreMaxMinFair) {
  Draws from(1);
  Compared compared(from.several(60, 50, 100));
  double now = 0;
  for (int i = 0; i < 400; ++i) {
    // Neighbours share links, so that changes can go far.
    const int first = from(0, 57);
    const int second = first + from(1, 2);
    const Started flow = from.flow_over({first, second});
    compared.start(now, from(1, 1000), flow);
    if (i % 4 == 0) {
      compared.expect_fair(0);
    }
    if (i > 100) {
      now = compared.end_next();
    }
  }
}

// Flow i uses links i and i + 1, so all flows are connected.
TEST(Network, AChangeGoesNoFurtherThanItMatters) {
  constexpr int kLinks = 1001;
  Compared compared(std::vector<double>(kLinks, 1.0));
  for (int i = 0; i + 1 < kLinks; ++i) {
    compared.start(0, 1e6 + i, {{i, i + 1}, 1, 1e9});
  }
  EXPECT_NEAR(compared.network.rate(500), 0.5, 1e-9);
  const std::int64_t before = compared.network.computed();
  for (int i = 0; i < 10; ++i) {
    const int flow = compared.start(1.0 + i, 1e6, {{100 * i + 50}, 1, 1e9});
    EXPECT_NEAR(compared.network.rate(flow), 1.0 / 3, 1e-9);
  }
  // All thousand for each of the ten would be 10,000.
  EXPECT_LT(compared.network.computed() - before, 1500);
  compared.expect_fair(0);
}

// Rates are needed when time goes on, not between what happens at one time.
TEST(Network, WhatStartsTogetherIsComputedOnce) {
  Network network({100});
  for (int i = 0; i < 50; ++i) {
    network.start(0, 1 + i, {0}, 1, 1e9);
    EXPECT_FALSE(network.ends_at(0));
  }
  EXPECT_EQ(network.computed(), 0);
  EXPECT_DOUBLE_EQ(network.next_end(), 0.5);
  EXPECT_EQ(network.computed(), 50);
  EXPECT_TRUE(network.ends_at(0.5));
}

} // namespace
} // namespace tessera::simulator
