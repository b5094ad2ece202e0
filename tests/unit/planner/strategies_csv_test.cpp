#include "tessera/planner/strategies_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/rank_correlation.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string priced(const std::string& csv) {
  return price_table(csv, "s.csv", cost::small_model(4), cost::small_cluster(2, 0));
}

std::string refusal(const std::string& csv) {
  try {
    priced(csv);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PriceTable, OtherColumnsPassThroughInTheirOrder) {
  const std::string out = priced(
      "note,mbs,layer_boundaries,tp,dp,pp\r\n"
      "\"a, b\",1,[0;2;4],1,2,2\n"
      "\n"
      "x,2,[0;4],1,4,1\n");
  EXPECT_THAT(
      out,
      StartsWith("note,mbs,layer_boundaries,tp,dp,pp,predicted_s,memory_gib\n"
                 "\"a, b\",1,[0;2;4],1,2,2,0."));
  EXPECT_THAT(out, HasSubstr("\nx,2,[0;4],1,4,1,0."));
}

TEST(PriceTable, WhatDoesNotFitIsInfinite) {
  cost::DescribedModel model = cost::small_model(4);
  model.layers[0].parameters = 5'000'000'000;
  EXPECT_THAT(
      price_table(
          "pp,dp,tp,mbs,layer_boundaries,predicted_s\n1,4,1,1,[0;4],7\n",
          "s.csv",
          model,
          cost::small_cluster(2, 0)),
      HasSubstr("\n1,4,1,1,[0;4],inf,"));
}

TEST(PriceTable, ErrorsNameTheLine) {
  const std::string head = "pp,dp,tp,mbs,layer_boundaries\n";
  EXPECT_THAT(refusal("pp,dp,tp,mbs\n"), HasSubstr("\"layer_boundaries\""));
  EXPECT_THAT(refusal("pp,dp,tp,pp,mbs,layer_boundaries\n"), HasSubstr("\"pp\" stands twice"));
  EXPECT_THAT(
      refusal(head + "1,4,1,1,[0;4]\n1,4,1,x,[0;4]\n"),
      AllOf(HasSubstr("s.csv: line 3"), HasSubstr("mbs: found \"x\"")));
  EXPECT_THAT(refusal(head + "1,4,1,1,0;4\n"), HasSubstr("[0;15;30]"));
  EXPECT_THAT(refusal(head + "1,4,1,1,[\n"), HasSubstr("[0;15;30]"));
  EXPECT_THAT(refusal(head + "1,4,1,1\n"), HasSubstr("found 4 cells"));
  EXPECT_THAT(refusal(head + "1,3,1,1,[0;4]\n"), HasSubstr("number of devices, 4"));
  EXPECT_THAT(refusal(""), HasSubstr("is empty"));
}

TEST(PriceTable, ColumnsInAnotherSpellingAreRefused) {
  const std::string end = ",pp,dp,tp,mbs,layer_boundaries\n";
  EXPECT_THAT(refusal("Zero" + end), HasSubstr("column \"Zero\"; write \"zero\""));
  EXPECT_THAT(refusal("node" + end), HasSubstr("column \"node\"; write \"nodes\""));
  EXPECT_THAT(refusal("stages per rank" + end), HasSubstr("write \"stages_per_rank\""));
  EXPECT_THAT(refusal("global_batch_size" + end), HasSubstr("write \"global_batch\""));
  EXPECT_THAT(refusal("sequence,Sequence Length" + end), HasSubstr("write \"sequence\""));
}

TEST(PriceTable, RowsMayHaveTheirOwnNodesAndBatch) {
  const std::string head = "pp,dp,tp,mbs,layer_boundaries,nodes,global_batch,zero,recompute\n";
  const PricedTable table = price_rows(
      head + "1,4,1,1,[0;4],2,16,0,1\n1,2,1,1,[0;4],1,8,1,0\n",
      "s.csv",
      cost::small_model(4),
      cost::small_cluster(2, 0));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].microbatches, 4);
  EXPECT_EQ(table.rows[1].microbatches, 4);
  EXPECT_EQ(table.cell(table.rows[1], "nodes"), "1");
  const cost::StageMemory& whole = table.rows[0].cost.stages[0].memory;
  EXPECT_EQ(table.rows[1].cost.stages[0].memory.optimizer, whole.optimizer / 2);
  EXPECT_THAT(refusal(head + "1,4,1,1,[0;4],3,16,0,1\n"), HasSubstr("write 1 to 2"));
  EXPECT_THAT(refusal(head + "1,4,1,1,[0;4],2,16,2,1\n"), HasSubstr("zero: found \"2\""));
}

TEST(PriceTable, AChoiceMayBeTheFirstColumn) {
  EXPECT_THAT(
      refusal("zero,pp,dp,tp,mbs,layer_boundaries\n2,1,4,1,1,[0;4]\n"),
      HasSubstr("zero: found \"2\"; write 0 or 1 or 3"));
}

TEST(PriceTable, StagesInTurnsShortenTheBubble) {
  const std::string head = "pp,dp,tp,mbs,layer_boundaries,stages_per_rank\n";
  const PricedTable table = price_rows(
      head + "2,2,1,1,[0;2;4],1\n2,2,1,1,[0;1;2;3;4],2\n",
      "s.csv",
      cost::small_model(4),
      cost::small_cluster(2, 0));
  ASSERT_EQ(table.rows.size(), 2u);
  // Even layers: one of two turns fills and drains the pipeline.
  EXPECT_NEAR(table.rows[1].cost.bubble_seconds, table.rows[0].cost.bubble_seconds / 2, 1e-12);
  EXPECT_GT(table.rows[0].cost.bubble_seconds, 0);
  EXPECT_THAT(refusal(head + "2,2,1,1,[0;2;4],2\n"), HasSubstr("s.csv: line 2"));
  EXPECT_THAT(refusal(head + "1,4,1,1,[0;2;4],2\n"), HasSubstr("with pp 1"));
  EXPECT_THAT(refusal(head + "2,2,1,1,[0;2;4],0\n"), HasSubstr("stages_per_rank: found"));
}

TEST(PriceTable, RanksTakeNodesInTheOrderOfARow) {
  const std::string head = "pp,dp,tp,mbs,layer_boundaries,node_order\n";
  const auto seconds_of = [](const std::string& csv) {
    return price_rows(csv, "s.csv", cost::small_model(4), cost::small_cluster(1, 1), {})
        .rows.at(0)
        .seconds();
  };
  const double fast_first = seconds_of(head + "2,2,1,1,[0;3;4],[0;1]\n");
  EXPECT_EQ(fast_first, seconds_of("pp,dp,tp,mbs,layer_boundaries\n2,2,1,1,[0;3;4]\n"));
  EXPECT_GT(seconds_of(head + "2,2,1,1,[0;3;4],[1;0]\n"), 1.5 * fast_first);
  for (const char* order : {"[0;0]", "[0]", "[0;2]"}) {
    EXPECT_THAT(
        refusal(head + "2,2,1,1,[0;3;4]," + order + "\n"),
        HasSubstr("node_order: write each of the cluster file's nodes once, from 0 to 1"));
  }
  EXPECT_THAT(refusal(head + "2,2,1,1,[0;3;4],1\n"), HasSubstr("node_order: found \"1\""));
}

TEST(PriceTable, AStageWithoutLayersDoesNotRun) {
  const std::string out = priced("pp,dp,tp,mbs,layer_boundaries\n2,2,1,1,[0;4;4]\n");
  EXPECT_THAT(out, HasSubstr("\n2,2,1,1,[0;4;4],inf,inf\n"));
  EXPECT_THAT(
      refusal("pp,dp,tp,mbs,layer_boundaries\n2,2,1,1,[0;3;3]\n"), HasSubstr("s.csv: line 2"));
  EXPECT_THAT( // of other degrees than the cluster has
      refusal("pp,dp,tp,mbs,layer_boundaries\n2,1,1,1,[0;4;4]\n"),
      HasSubstr("number of devices"));
}

TEST(PriceTable, ARowMayRecomputeAllButTheLastProduct) {
  const std::string head = "pp,dp,tp,mbs,layer_boundaries,recompute,recomputation_stops_early\n";
  EXPECT_THAT(refusal(head + "1,4,1,1,[0;4],1,1\n"), HasSubstr("seconds were measured"));
  cost::DescribedModel model;
  model.name = "sized";
  model.global_batch_size = 8;
  model.layers = {
      {.name = "layer",
       .kind = "transformer_layer",
       .parameters = 12 * 64 * 64,
       .shares_parameters_with = {},
       .output_elements_per_sample = 32 * 64}};
  model.source =
      cost::SizedModel{.sequence_length = 32, .num_attention_heads = 4, .vocabulary_size = 8};
  cost::Cluster cluster = cost::small_cluster(1, 0);
  for (cost::DeviceKind& kind : cluster.kinds) {
    kind.memory_bytes_per_s = 1e12;
    kind.product_flops_per_s = 1e12;
  }
  const auto seconds_of = [&](const char* row) {
    return price_rows(head + row, "s.csv", model, cluster, {}).rows.at(0).seconds();
  };
  const double whole = seconds_of("1,2,1,1,[0;1],1,0");
  const double early = seconds_of("1,2,1,1,[0;1],1,1");
  const double none = seconds_of("1,2,1,1,[0;1],0,1");
  EXPECT_LT(none, early);
  EXPECT_LT(early, whole);
  std::get<cost::SizedModel>(model.source).recomputation_stops_early = true; // the row overrules it
  EXPECT_EQ(seconds_of("1,2,1,1,[0;1],1,0"), whole);
}

TEST(PriceTable, MeasuredSecondsHoldForOneLengthOfSamples) {
  EXPECT_THAT(
      refusal("pp,dp,tp,mbs,layer_boundaries,sequence\n1,4,1,1,[0;4],128\n"),
      HasSubstr("measured at one length"));
}

TEST(Spearman, IsTheCorrelationOfRanks) {
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3}, {10, 20, 1000}), 1);
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3}, {3, 2, 1}), -1);
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {1, 3, 2, 4}), 0.8);
  EXPECT_DOUBLE_EQ(spearman({1, 1, 2}, {1, 1, 5}), 1);
  EXPECT_EQ(spearman({1, 1}, {1, 2}), 0);
  EXPECT_DOUBLE_EQ(spearman({3, 7}, {1, 2}), 1); // of two, ranks are half a place from their mean
}

} // namespace
} // namespace tessera::planner
