// The parts of AMP's experiments that need no published file.
#include "bench/planner/amp_study.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/planner/row_strategy.h"

namespace tessera::bench {
namespace {

using testing::ElementsAre;

cost::DescribedModel with_parameters(const std::vector<int>& counts) {
  cost::DescribedModel model;
  for (const int count : counts) {
    model.layers.push_back(
        {.name = "layer." + std::to_string(model.layers.size()),
         .kind = "other",
         .parameters = count,
         .shares_parameters_with = {},
         .output_elements_per_sample = 1});
  }
  return model;
}

cost::DescribedModel with_kinds(const std::string& kinds) {
  cost::DescribedModel model = with_parameters(std::vector<int>(kinds.size(), 1));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    model.layers[i].kind = kinds[i] == 't' ? "transformer_layer" : "reshape";
  }
  return model;
}

TEST(EvenLayers, TheFirstStagesHaveMoreTransformerLayers) {
  EXPECT_THAT(even_layers(with_kinds("tttttttt"), 4), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(even_layers(with_kinds("ttttttt"), 3), ElementsAre(0, 3, 5, 7));
}

TEST(EvenLayers, OtherLayersFollowTheTransformerLayerInFront) {
  EXPECT_THAT(even_layers(with_kinds("--t-t--t-t-"), 2), ElementsAre(0, 7, 11));
  EXPECT_THAT(even_layers(with_kinds("--t-t--t-t-"), 4), ElementsAre(0, 4, 7, 9, 11));
}

TEST(NarrowLayers, TakeTheShareOfAWideOne) {
  cost::DescribedModel model = with_kinds("t-t");
  model.layers[0].parameters = 100;
  model.source = cost::MeasuredModel{
      .layers = {
          {.forward_seconds_per_sample = {{"d", {{1, 2.0}, {2, 3.0}}}}},
          {.forward_seconds_per_sample = {{"d", {{1, 9.0}, {2, 9.0}}}}},
          {.forward_seconds_per_sample = {{"d", {{1, 7.0}, {2, 8.0}}}}}}};
  const auto changed = with_narrow_layers(model, 0.5).measured().layers;
  EXPECT_EQ(changed[0].forward_seconds_per_sample.at("d").at(2), 3.0);
  EXPECT_EQ(changed[1].forward_seconds_per_sample.at("d").at(1), 9.0);
  EXPECT_EQ(changed[2].forward_seconds_per_sample.at("d").at(1), 1.0);
  EXPECT_EQ(changed[2].forward_seconds_per_sample.at("d").at(2), 1.5);
}

TEST(Boundaries, AreTheNumbersOfACell) {
  EXPECT_THAT(boundaries_of("[0;15;30]"), ElementsAre(0, 15, 30));
  EXPECT_THAT(boundaries_of("[0;30]"), ElementsAre(0, 30));
}

int largest_stage(const std::vector<int>& counts, const std::vector<int>& cuts) {
  int largest = 0;
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    largest = std::max(
        largest, std::accumulate(counts.begin() + cuts[k], counts.begin() + cuts[k + 1], 0));
  }
  return largest;
}

// Returns the least largest stage over all ways to cut, by trying every one.
int least_largest(const std::vector<int>& counts, int stages, std::vector<int> cuts = {0}) {
  const int layers = static_cast<int>(counts.size());
  if (static_cast<int>(cuts.size()) == stages) {
    cuts.push_back(layers);
    return largest_stage(counts, cuts);
  }
  int least = 1 << 30;
  for (int cut = cuts.back() + 1; cut < layers; ++cut) {
    std::vector<int> longer = cuts;
    longer.push_back(cut);
    least = std::min(least, least_largest(counts, stages, longer));
  }
  return least;
}

TEST(EvenParameters, NoOtherCutsHaveASmallerLargestStage) {
  unsigned state = 1;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int> counts;
    for (int i = 0; i < 9; ++i) {
      state = state * 1664525u + 1013904223u;
      counts.push_back(static_cast<int>(state >> 24));
    }
    for (const int stages : {1, 2, 3, 5}) {
      const std::vector<int> cuts = even_parameters(with_parameters(counts), stages);
      ASSERT_EQ(cuts.size(), static_cast<std::size_t>(stages) + 1);
      EXPECT_EQ(cuts.front(), 0);
      EXPECT_EQ(cuts.back(), 9);
      EXPECT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
      EXPECT_EQ(std::adjacent_find(cuts.begin(), cuts.end()), cuts.end());
      EXPECT_EQ(largest_stage(counts, cuts), least_largest(counts, stages)) << trial;
    }
  }
}

TEST(TopTen, IsOfTheTenShortest) {
  std::vector<double> seconds = {100, 90};
  for (int i = 1; i <= 10; ++i) {
    seconds.push_back(i);
  }
  const TopTen ten = top_ten(seconds);
  EXPECT_EQ(ten.count, 10);
  EXPECT_EQ(ten.least, 1);
  EXPECT_NEAR(ten.mean, 5.5, 1e-12);
  EXPECT_NEAR(ten.deviation, std::sqrt(8.25), 1e-12);
  EXPECT_EQ(top_ten({}).count, 0);
}

TEST(Plot, PutsPointsWhereTheirNumbersAre) {
  const std::string svg = plot("x", "y", {{"all", {2, 4}, {1, 3}, false}});
  // 480 by 320 with an edge of 48: the largest of both is in the upper right corner.
  EXPECT_THAT(svg, testing::HasSubstr("cx=\"432.0\" cy=\"48.0\""));
  EXPECT_THAT(svg, testing::HasSubstr("cx=\"240.0\" cy=\"197.3\""));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
}

} // namespace
} // namespace tessera::bench
