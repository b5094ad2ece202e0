// Two probes of one machine under different foreign load, reduced to the same cluster. Nothing is
// timed: rounds are what a machine of known speed would show.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "tessera/autotune/probe/probe.h"
#include "tessera/autotune/probe/rounds.h"

namespace tessera::autotune {
namespace {

constexpr int kRounds = 3;
constexpr int kMostExtraRounds = 8;

// A machine whose quantities are known, and the load of other programs, which only adds time: it
// comes in bursts that meet several rounds in a row.
class LoadedMachine {
 public:
  explicit LoadedMachine(std::uint64_t seed) : random_(seed) {}

  double shows(double seconds) {
    if (left_ == 0 && random_() % 3 == 0) {
      left_ = 1 + static_cast<int>(random_() % 3);
    }
    const double jitter = 1 + 0.02 * draw();
    if (left_ == 0) {
      return seconds * jitter;
    }
    --left_;
    return seconds * jitter * (1.5 + 8 * draw());
  }

 private:
  double draw() {
    return static_cast<double>(random_() >> 11) * 0x1.0p-53;
  }

  std::mt19937_64 random_;
  int left_ = 0; // rounds that the burst still meets
};

double product_seconds(double size) {
  return 2e-6 + 2 * size * size * size / 50e9;
}

// Measures products as a probe does: rounds that lie apart, and more of what is in doubt.
std::vector<cost::MeasuredPoint> probe_products(LoadedMachine& machine) {
  Series series;
  series.exponent = 3;
  series.slowdown = 2;
  for (double size = 32; size <= 1024; size *= 2) {
    series.add_size(size);
  }
  const auto once = [&](std::size_t i) {
    series.points[i].add(machine.shows(product_seconds(series.sizes[i])));
  };
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < series.sizes.size(); ++i) {
      once(i);
    }
  }
  for (int extra = 0; extra < kMostExtraRounds; ++extra) {
    for (const std::size_t i : doubtful(series)) {
      once(i);
    }
  }
  return series.measured();
}

double best_of(LoadedMachine& machine, double seconds) {
  Rounds rounds;
  for (int round = 0; round < kRounds + kMostExtraRounds; ++round) {
    rounds.add(machine.shows(seconds));
    if (round >= kRounds && rounds.spread() < kAgreement) {
      break;
    }
  }
  return rounds.best();
}

// Two hosts of two ranks, the second 1.6 times as slow.
cost::Cluster probe(std::uint64_t seed) {
  LoadedMachine machine(seed);
  std::vector<RankMeasurement> ranks;
  for (const char* host : {"a", "a", "b", "b"}) {
    const double slower = host[0] == 'a' ? 1 : 1.6;
    RankMeasurement one;
    one.host = host;
    one.processor = "a processor";
    one.free_bytes = 4e9;
    one.speed.products["f32"] = probe_products(machine);
    for (cost::MeasuredPoint& point : one.speed.products["f32"]) {
      point.seconds *= slower;
    }
    const double move = best_of(machine, 1e-6 * slower);
    one.speed.moves = one.speed.functions = one.speed.random = {{16, move}};
    one.alone_layers_per_s = 1 / best_of(machine, 0.01 * slower);
    for (int round = 0; round < 5; ++round) {
      one.busy_layers_per_s.push_back(1 / machine.shows(0.015 * slower));
    }
    one.busy_bytes_per_s = 1e6 / best_of(machine, 1e-3 * slower);
    ranks.push_back(one);
  }
  std::vector<PairFacts> pairs;
  for (int first = 0; first < 4; ++first) {
    for (int second = first + 1; second < 4; ++second) {
      const bool inside = first / 2 == second / 2;
      PairFacts pair;
      pair.first = first;
      pair.second = second;
      pair.bytes_per_s = 1e6 / best_of(machine, inside ? 1e-3 : 1e-2);
      pair.latency_us = 1e6 * best_of(machine, inside ? 1e-5 : 1e-4);
      pairs.push_back(pair);
    }
  }
  return to_cluster(ranks, pairs, {});
}

void expect_alike(double one, double other, double share, const char* what, int seed) {
  EXPECT_LT(std::max(one, other) / std::min(one, other), 1 + share) << what << " of " << seed;
}

TEST(TwoProbes, OfOneMachineUnderOtherLoadAreOneCluster) {
  for (int seed = 1; seed <= 40; seed += 2) {
    const cost::Cluster one = probe(static_cast<std::uint64_t>(seed));
    const cost::Cluster other = probe(static_cast<std::uint64_t>(seed) + 1);
    ASSERT_EQ(one.nodes.size(), 2u);
    ASSERT_EQ(one.kinds.size(), other.kinds.size()) << seed;
    for (std::size_t n = 0; n < 2; ++n) {
      const cost::Node& a = one.nodes[n];
      const cost::Node& b = other.nodes[n];
      EXPECT_EQ(a.kind, b.kind) << seed;
      EXPECT_EQ(a.count, b.count) << seed;
      expect_alike(a.intra_bytes_per_s, b.intra_bytes_per_s, kAgreement, "inside", seed);
      expect_alike(a.inter_bytes_per_s, b.inter_bytes_per_s, kAgreement, "network", seed);
      expect_alike(a.latency_seconds, b.latency_seconds, kAgreement, "latency", seed);
      const auto& products = one.kinds[static_cast<std::size_t>(a.kind)].speed.products.at("f32");
      const auto& again = other.kinds[static_cast<std::size_t>(b.kind)].speed.products.at("f32");
      ASSERT_EQ(products.size(), again.size());
      for (std::size_t i = 0; i < products.size(); ++i) {
        expect_alike(products[i].seconds, again[i].seconds, kAgreement, "product", seed);
      }
    }
  }
}

TEST(TwoProbes, DoNotAgreeByOneRoundEach) {
  // Without rounds and repetitions the load would show, or the test above could not fail.
  int apart = 0;
  for (std::uint64_t seed = 1; seed <= 40; seed += 2) {
    LoadedMachine one(seed);
    LoadedMachine other(seed + 1);
    for (int i = 0; i < 6; ++i) {
      const double a = one.shows(1e-3);
      const double b = other.shows(1e-3);
      apart += std::max(a, b) / std::min(a, b) > 1 + kAgreement ? 1 : 0;
    }
  }
  EXPECT_GT(apart, 40);
}

} // namespace
} // namespace tessera::autotune
