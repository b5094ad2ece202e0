#include "tessera/planner/judgement.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/planner/rank_correlation.h"

namespace tessera::planner {

namespace {

double number(const PricedTable& table, const PricedRow& row, const std::string& name) {
  const std::string text = table.cell(row, name);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') {
    throw ConfigError(str(name, ": found \"", text, "\"; write a number, or inf for a failed run"));
  }
  return value;
}

// Returns the value below which `share` of the values lie; 0 for none.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(share * last))];
}

} // namespace

Judgement judge(const PricedTable& table, const std::function<bool(const PricedRow&)>& asked) {
  Judgement verdict;
  std::vector<double> measured;
  std::vector<double> estimated;
  std::vector<double> errors;
  std::vector<double> ratios;
  std::vector<double> memory_errors;
  double best = std::numeric_limits<double>::infinity();
  double picked = std::numeric_limits<double>::infinity();
  double picked_estimate = std::numeric_limits<double>::infinity();
  for (const PricedRow& row : table.rows) {
    if (!asked(row)) {
      continue;
    }
    ++verdict.runs;
    const double took = number(table, row, "measured_s");
    const bool goes = !std::isinf(row.seconds());
    if (std::isinf(took)) {
      verdict.accepted += goes ? 1 : 0;
      continue;
    }
    ++verdict.finished;
    verdict.refused += goes ? 0 : 1;
    best = std::min(best, took);
    if (row.seconds() < picked_estimate) {
      picked_estimate = row.seconds();
      picked = took;
    }
    if (!row.runs) {
      continue;
    }
    measured.push_back(took);
    estimated.push_back(row.cost.seconds);
    ratios.push_back(row.cost.seconds / took);
    errors.push_back(std::abs(ratios.back() - 1));
    if (!table.cell(row, "measured_gib").empty()) {
      const double first = row.cost.stages.front().memory.total();
      memory_errors.push_back(std::abs(first / (1 << 30) / number(table, row, "measured_gib") - 1));
    }
  }
  verdict.spearman = spearman(measured, estimated);
  verdict.median_error = quantile(errors, 0.5);
  verdict.worst_decile_error = quantile(errors, 0.9);
  verdict.median_ratio = quantile(ratios, 0.5);
  verdict.memory_error = quantile(memory_errors, 0.5);
  verdict.regret = std::isinf(best) ? 0 : picked / best - 1;
  return verdict;
}

} // namespace tessera::planner
