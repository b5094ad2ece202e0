#include "tessera/planner/judgement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

// Rows "pp,measured_s,measured_gib" of four devices.
PricedTable table_of(const std::string& rows) {
  std::string csv = "pp,dp,tp,mbs,layer_boundaries,measured_s,measured_gib\n";
  std::istringstream in(rows);
  for (std::string row; std::getline(in, row);) {
    const int pp = row.front() - '0';
    csv += str(pp, ",", 4 / pp, ",1,1,", pp == 1 ? "[0;4]" : pp == 2 ? "[0;2;4]" : "[0;1;2;3;4]");
    csv += row.substr(1) + "\n";
  }
  return price_rows(csv, "s.csv", cost::small_model(4), cost::small_cluster(2, 0));
}

bool every(const PricedRow& /*row*/) {
  return true;
}

TEST(Judgement, ErrorsAndRegret) {
  PricedTable table = table_of("1,1,\n2,2,\n4,4,\n");
  table.rows[0].cost.seconds = 3;
  table.rows[1].cost.seconds = 1;
  table.rows[2].cost.seconds = 5;
  const Judgement verdict = judge(table, every);
  EXPECT_EQ(verdict.runs, 3);
  EXPECT_EQ(verdict.finished, 3);
  EXPECT_DOUBLE_EQ(verdict.spearman, 0.5);
  EXPECT_DOUBLE_EQ(verdict.median_error, 0.5); // 2, 0.5, 0.25
  EXPECT_DOUBLE_EQ(verdict.regret, 1); // the second is picked and takes 2 s, the best 1 s
  EXPECT_DOUBLE_EQ(verdict.right(), 1);
}

TEST(Judgement, FailedRunsCount) {
  PricedTable table = table_of("1,inf,\n2,2,\n4,inf,\n");
  table.rows[1].runs = false;
  table.rows[2].runs = false;
  const Judgement verdict = judge(table, every);
  EXPECT_EQ(verdict.accepted, 1);
  EXPECT_EQ(verdict.refused, 1);
  EXPECT_NEAR(verdict.right(), 1 / 3.0, 1e-12);
}

TEST(Judgement, RowsThatAreNotAskedForDoNotCount) {
  const PricedTable table = table_of("1,1,\n2,2,\n");
  const auto first = [&](const PricedRow& row) { return table.cell(row, "pp") == "1"; };
  EXPECT_EQ(judge(table, first).runs, 1);
}

TEST(Judgement, MemoryIsThatOfTensors) {
  PricedTable table = table_of("1,1,2\n");
  table.rows[0].cost.stages[0].memory = {.weights = 3.0 * (1 << 30)};
  EXPECT_DOUBLE_EQ(judge(table, every).memory_error, 0.5);
}

TEST(Judgement, WhatIsNoNumberIsRefused) {
  EXPECT_THROW(judge(table_of("1,fast,\n"), every), ConfigError);
}

} // namespace
} // namespace tessera::planner
