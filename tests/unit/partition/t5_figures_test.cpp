#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/partition/partition.h"

#include "tests/unit/partition/t5_graph.h"

// Figures 9 and 10 of Karakus et al. 2021, appendix D: T5-11B on 8 devices.
//
// The figures do not state their inputs. Ours: float32, one sample, encoder
// length 512, decoder length 114, untimed (psi = number of descendants), w and
// psi divided by the root's, every byte and module counted once, modules down
// to the linear layers (the figures draw them down to layers).
//
// Same as the figures: devices per stack, the tied node on partition 0, fewer
// decoder layers there at alpha 0.2, the range of totals at alpha 1.0 to 0.003.
// Different: at alpha 0.2 our encoder partitions carry 0.136 where the paper's
// largest total is 0.131, and partition 0 has 0.103 for the paper's 0.107. The
// decoder would be dearer if psi were measured time, which the figures may use.
namespace tessera::partitioning {
namespace {

std::set<int> partitions_below(const Result& result, const std::string& path) {
  std::set<int> found;
  for (const auto& [module, partition] : result.partition) {
    if (module.rfind(path + ".layers.", 0) == 0) {
      found.insert(partition);
    }
  }
  return found;
}

// How many layers of a stack each partition runs.
std::vector<int> layers_of(const Result& result, const std::string& stack, int layers = 24) {
  std::vector<int> count(result.total.size(), 0);
  for (int i = 0; i < layers; ++i) {
    ++count[result.partition.at(stack + ".layers." + std::to_string(i))];
  }
  return count;
}

Result decide(double memory_weight, const T5Shape& shape = {}) {
  const graph::ModelGraph model = t5_graph(shape);
  return partition(model, {.partitions = 8, .memory_weight = memory_weight});
}

struct Range {
  double low = 0;
  double high = 0;
};

Range print_totals(const Result& result, double memory_weight, Range paper) {
  std::printf("alpha %.1f, total per partition:", memory_weight);
  for (const double total : result.total) {
    std::printf(" %.3f", total);
  }
  const auto [low, high] = std::minmax_element(result.total.begin(), result.total.end());
  std::printf("\n  here %.3f..%.3f, paper %.3f..%.3f\n", *low, *high, paper.low, paper.high);
  return {*low, *high};
}

TEST(T5Figures, TheGraphHasElevenBillionParameters) {
  const graph::ModelGraph model = t5_graph();
  std::int64_t elements = 0;
  for (const graph::Parameter& parameter : model.parameters) {
    elements += parameter.elements;
  }
  const std::int64_t attention = 4 * 1024 * (128 * 128);
  const std::int64_t feed_forward = 2 * 1024 * 65536;
  const std::int64_t encoder_layer = attention + feed_forward + 2 * 1024;
  const std::int64_t decoder_layer = 2 * attention + feed_forward + 3 * 1024;
  EXPECT_EQ(elements, 24 * encoder_layer + 24 * decoder_layer + 2 * 1024 + 32128 * 1024);
}

TEST(T5Figures, AllOfMemoryGivesFourAndFour) {
  const Result result = decide(1.0);
  EXPECT_EQ(partitions_below(result, "encoder"), (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(partitions_below(result, "decoder"), (std::set<int>{4, 5, 6, 7}));
  EXPECT_TRUE(result.warnings.empty());
}

TEST(T5Figures, LittleMemoryGivesThreeAndFive) {
  const Result result = decide(0.2);
  EXPECT_EQ(partitions_below(result, "encoder"), (std::set<int>{1, 2, 3}));
  EXPECT_EQ(partitions_below(result, "decoder"), (std::set<int>{0, 4, 5, 6, 7}));
  // "Partition 0 gets assigned fewer decoder layers, balancing the fact that
  // it holds other layers such as embedding and lm_head."
  EXPECT_EQ(layers_of(result, "decoder"), (std::vector<int>{4, 0, 0, 0, 5, 5, 5, 5}));
  EXPECT_EQ(layers_of(result, "encoder"), (std::vector<int>{0, 8, 8, 8, 0, 0, 0, 0}));
}

TEST(T5Figures, TiedWeightsAreOneNodeOnPartitionZero) {
  for (const double memory_weight : {1.0, 0.2}) {
    const Result result = decide(memory_weight);
    EXPECT_EQ(result.partition.at("word_embedding"), 0);
    EXPECT_EQ(result.partition.at("lm_head"), 0);
    EXPECT_EQ(result.partition.at(""), 0);
  }
}

TEST(T5Figures, TheDecisionHoldsForOtherGranularities) {
  for (const bool dropout_modules : {false, true}) {
    T5Shape shape;
    shape.dropout_modules = dropout_modules;
    EXPECT_EQ(partitions_below(decide(1.0, shape), "encoder").size(), 4U);
    EXPECT_EQ(partitions_below(decide(1.0, shape), "decoder").size(), 4U);
    EXPECT_EQ(partitions_below(decide(0.2, shape), "encoder").size(), 3U);
    EXPECT_EQ(partitions_below(decide(0.2, shape), "decoder").size(), 5U);
  }
}

TEST(T5Figures, TotalsBesideThoseOfThePaper) {
  const Range nine = print_totals(decide(1.0), 1.0, {0.114, 0.134});
  EXPECT_NEAR(nine.low, 0.114, 0.003);
  EXPECT_NEAR(nine.high, 0.134, 0.003);
  const Result result = decide(0.2);
  const Range ten = print_totals(result, 0.2, {0.107, 0.131});
  EXPECT_NEAR(ten.low, 0.107, 0.006);
  EXPECT_NEAR(ten.high, 0.131, 0.006);
  EXPECT_EQ(ten.low, result.total[0]);
}

} // namespace
} // namespace tessera::partitioning
