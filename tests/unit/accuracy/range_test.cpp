// The ranges of predictions: made from the rows that they name, judged on others.
#include <algorithm>
#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "tessera/cost/prediction_range.h"

#include "bench/planner/amp_paper.h"
#include "bench/planner/published_runs.h"
#include "tests/unit/accuracy/needs_amp_runs.h"

namespace tessera::bench {
namespace {

using cost::Range;
using AmpRanges = NeedsAmpRuns;

// Values with a share (1 - kRangeShare) / 2 below and as many above, between two by interpolation.
Range middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const double part = place - static_cast<double>(below);
    return values[below] * (1 - part) + values[std::min(below + 1, values.size() - 1)] * part;
  };
  const double outside = (1 - cost::kRangeShare) / 2;
  return {at(outside), at(1 - outside)};
}

double share_within(const Range& range, const std::vector<double>& values) {
  const auto within = std::count_if(values.begin(), values.end(), [&](double value) {
    return value >= range.low && value <= range.high;
  });
  return static_cast<double>(within) / static_cast<double>(values.size());
}

void expect_equal(const Range& range, const Range& made) {
  EXPECT_NEAR(range.low, made.low, 0.001);
  EXPECT_NEAR(range.high, made.high, 0.001);
}

// Measured to estimated, of the finished runs.
std::vector<double> seconds_of(const planner::PricedTable& table) {
  std::vector<double> ratios;
  for (const planner::PricedRow& row : table.rows) {
    const double measured = std::stod(table.cell(row, "measured_s"));
    if (row.runs && !std::isinf(measured)) {
      ratios.push_back(measured / row.cost.seconds);
    }
  }
  return ratios;
}

// The same of the memory that a device of the first stage reports.
std::vector<double> memory_of(const planner::PricedTable& table) {
  std::vector<double> ratios;
  for (const planner::PricedRow& row : table.rows) {
    const std::string measured = table.cell(row, "measured_gib");
    if (row.runs && !measured.empty() && !std::isinf(std::stod(table.cell(row, "measured_s")))) {
      ratios.push_back(std::stod(measured) * (1 << 30) / row.cost.stages.front().memory.total());
    }
  }
  return ratios;
}

std::pair<std::vector<double>, std::vector<double>> every_other(const std::vector<double>& all) {
  std::pair<std::vector<double>, std::vector<double>> parts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    (i % 2 == 0 ? parts.first : parts.second).push_back(all[i]);
  }
  return parts;
}

cost::DescribedModel of_sizes() {
  cost::DescribedModel model;
  model.source = cost::SizedModel{};
  return model;
}

TEST(Ranges, OfModelsOfSizesAreThoseOfTheRunsOfOneModel) {
  std::vector<double> judged;
  for (const PublishedRuns& runs : published_runs(PUBLISHED_RUNS, {})) {
    const std::vector<double> seconds = seconds_of(runs.table);
    const std::vector<double> bytes = memory_of(runs.table);
    if (runs.name == "llama_1b") {
      EXPECT_EQ(seconds.size(), 526u);
      expect_equal(cost::seconds_range(of_sizes(), {}, 1), middle_of(seconds));
      expect_equal(*cost::memory_range(of_sizes(), 1), middle_of(bytes));
      continue;
    }
    if (runs.name == "llama_8b") {
      EXPECT_GT(share_within(cost::seconds_range(of_sizes(), {}, 1), seconds), 0.79);
      EXPECT_GT(share_within(*cost::memory_range(of_sizes(), 1), bytes), 0.85);
    }
    judged.insert(judged.end(), seconds.begin(), seconds.end());
  }
  EXPECT_EQ(judged.size(), 700u);
  EXPECT_GT(share_within(cost::seconds_range(of_sizes(), {}, 1), judged), 0.85);
}

TEST_F(AmpRanges, OfMeasuredModelsAreThoseOfEveryOtherRunOfAmp) {
  const auto [made, judged] = every_other(seconds_of(amp_runs(AMP_RUNS)));
  expect_equal(cost::seconds_range({}, {}, 1), middle_of(made));
  EXPECT_GT(share_within(cost::seconds_range({}, {}, 1), judged), 0.78);
  EXPECT_EQ(cost::memory_range({}, 1), std::nullopt);
}

// Measured to estimated seconds, from the table of a page.
std::vector<double> fidelity_runs(const std::string& day) {
  std::istringstream page(read_file(FIDELITY_RUNS + day + ".md"));
  std::vector<double> ratios;
  for (std::string line; std::getline(page, line);) {
    std::vector<std::string> cells;
    std::istringstream in(line);
    for (std::string cell; std::getline(in, cell, '|');) {
      cells.push_back(cell);
    }
    if (cells.size() == 15 && cells[1].find_first_of("0123456789") != std::string::npos) {
      ratios.push_back(std::stod(cells[10]) / std::stod(cells[8]));
    }
  }
  EXPECT_EQ(ratios.size(), 36u) << day;
  return ratios;
}

TEST(Ranges, OfTracedModelsAreThoseOfEveryOtherRunOfAJob) {
  std::vector<double> made;
  std::vector<double> judged;
  for (const char* day : {"27", "28"}) {
    const auto [first, second] = every_other(fidelity_runs(day));
    made.insert(made.end(), first.begin(), first.end());
    judged.insert(judged.end(), second.begin(), second.end());
  }
  cost::DescribedModel model;
  model.source = cost::TracedModel{};
  cost::Cluster probed;
  probed.measured = true;
  expect_equal(cost::seconds_range(model, probed, 1), middle_of(made));
  EXPECT_GT(share_within(cost::seconds_range(model, probed, 1), judged), 0.9);
  expect_equal(cost::seconds_range(model, {}, 1), cost::seconds_range(of_sizes(), {}, 1));
  EXPECT_EQ(cost::memory_range(model, 1), std::nullopt);
}

TEST_F(AmpRanges, ComeWithEveryEstimateAndGrowWithIt) {
  const AmpSetup setup = amp_setup(AMP_RUNS, "gpt2", "homogeneous");
  for (const planner::PricedRow& row : amp_runs(AMP_RUNS).rows) {
    const Range range = cost::seconds_range(setup.model, setup.cluster, row.cost.seconds);
    EXPECT_EQ(row.cost.seconds_range.low, range.low);
    EXPECT_EQ(row.cost.seconds_range.high, range.high);
    EXPECT_LT(range.low, range.high);
  }
}

} // namespace
} // namespace tessera::bench
