// Prices the runs that the AMP paper measured and compares the order.
// usage: planner_published FOLDER [MODEL CLUSTER MEASURED] [--sensitivity]
// FOLDER holds the published inputs (docs/adr/0119-amp-s-runs-stay-outside.md); the next three name
// files in it. With
// --sensitivity: how much the order hangs on each constant.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/planner/description.h"
#include "tessera/planner/rank_correlation.h"
#include "tessera/planner/strategies_csv.h"

namespace {

using Row = std::vector<std::string>;

std::vector<Row> rows_of(const std::string& csv) {
  std::vector<Row> rows;
  std::istringstream in(csv);
  for (std::string line; std::getline(in, line);) {
    rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) {
      rows.back().push_back(cell);
    }
  }
  return rows;
}

std::size_t column(const Row& header, const std::string& name) {
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (header[i] == name) {
      return i;
    }
  }
  throw tessera::Error("the table has no column " + name);
}

struct Files {
  std::string model;
  std::string cluster;
  std::string measured;
};

// What the runs say of an estimate.
struct Verdict {
  std::vector<Row> rows; // with predicted_s and memory_gib; [0] are the names
  std::size_t finished = 0;
  double spearman = 0;
  bool fastest_first = false;
  int wrongly_refused = 0;
  int wrongly_accepted = 0;
  double most_fitting_gib = 0;
  double least_failing_gib = INFINITY;
};

Verdict judge(const Files& files, const tessera::cost::Constants& constants) {
  Verdict verdict;
  verdict.rows = rows_of(tessera::planner::price_table(
      tessera::read_file(files.measured),
      files.measured,
      tessera::planner::load_model(files.model),
      tessera::planner::load_cluster(files.cluster),
      constants));
  const auto& rows = verdict.rows;
  const std::size_t measured = column(rows[0], "measured_s");
  const std::size_t predicted = column(rows[0], "predicted_s");
  const std::size_t memory = column(rows[0], "memory_gib");
  std::vector<double> x;
  std::vector<double> y;
  std::size_t fastest = 0;
  std::size_t first = 0;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const double took = std::stod(rows[i][measured]);
    const double estimate = std::stod(rows[i][predicted]);
    const double gib = std::stod(rows[i][memory]);
    if (std::isinf(took)) {
      verdict.wrongly_accepted += std::isinf(estimate) ? 0 : 1;
      verdict.least_failing_gib = std::min(verdict.least_failing_gib, gib);
      continue;
    }
    verdict.most_fitting_gib = std::max(verdict.most_fitting_gib, gib);
    verdict.wrongly_refused += std::isinf(estimate) ? 1 : 0;
    x.push_back(took);
    y.push_back(estimate);
    if (fastest == 0 || took < std::stod(rows[fastest][measured])) {
      fastest = i;
    }
    if (first == 0 || estimate < std::stod(rows[first][predicted])) {
      first = i;
    }
  }
  verdict.finished = x.size();
  verdict.spearman = tessera::planner::spearman(x, y);
  verdict.fastest_first = fastest == first;
  return verdict;
}

void show_runs(const Files& files) {
  const Verdict verdict = judge(files, {});
  const auto& rows = verdict.rows;
  const std::size_t measured = column(rows[0], "measured_s");
  const std::size_t predicted = column(rows[0], "predicted_s");
  const std::size_t memory = column(rows[0], "memory_gib");
  for (std::size_t i = 1; i < rows.size(); ++i) {
    std::printf(
        "%3s %3s %3s %3s  measured %8.3f  predicted %8.3f  memory %6.2f GiB\n",
        rows[i][0].c_str(),
        rows[i][1].c_str(),
        rows[i][2].c_str(),
        rows[i][3].c_str(),
        std::stod(rows[i][measured]),
        std::stod(rows[i][predicted]),
        std::stod(rows[i][memory]));
  }
  std::printf(
      "%zu finished runs: Spearman %.4f; the fastest is %s\n"
      "finished but refused: %d (most memory %.2f GiB)\n"
      "failed but accepted: %d (least memory %.2f GiB)\n",
      verdict.finished,
      verdict.spearman,
      verdict.fastest_first ? "predicted first" : "not predicted first",
      verdict.wrongly_refused,
      verdict.most_fitting_gib,
      verdict.wrongly_accepted,
      verdict.least_failing_gib);
}

// Each constant alone, from half to twice its value.
void show_sensitivity(const Files& files) {
  using tessera::cost::Constants;
  const std::vector<std::pair<const char*, double Constants::*>> all = {
      {"operators of a layer", &Constants::transformer_operators},
      {"link efficiency", &Constants::link_efficiency},
      {"link latency", &Constants::link_latency_seconds},
      {"optimizer traffic", &Constants::optimizer_traffic_bytes},
      {"memory efficiency", &Constants::memory_efficiency},
      {"gradient on the wire *", &Constants::gradient_wire_bytes},
      {"gradient copies", &Constants::gradient_copies_bytes},
      {"usable memory", &Constants::usable_memory_share},
      {"context", &Constants::context_bytes},
      {"logits", &Constants::logit_bytes},
      {"working set, whole *", &Constants::whole_working_bytes},
      {"working set, divided *", &Constants::divided_working_bytes},
      {"attention scores", &Constants::score_bytes}};
  std::printf(
      "Spearman of the finished runs; f: the fastest is predicted first; "
      "-a: a finished runs are refused; +b: b failed runs are accepted\n"
      "%-24s",
      "constant x");
  const std::vector<double> factors = {0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2};
  for (const double factor : factors) {
    std::printf("  %12g", factor);
  }
  std::printf("\n");
  for (const auto& [name, field] : all) {
    std::printf("%-24s", name);
    for (const double factor : factors) {
      Constants constants;
      constants.*field *= factor;
      const Verdict verdict = judge(files, constants);
      std::printf(
          "  %.3f%s -%d +%d",
          verdict.spearman,
          verdict.fastest_first ? "f" : " ",
          verdict.wrongly_refused,
          verdict.wrongly_accepted);
    }
    std::printf("\n");
  }
}

} // namespace

int main(int argc, char** argv) {
  const bool sensitivity = argc > 1 && std::string(argv[argc - 1]) == "--sensitivity";
  const int names = argc - (sensitivity ? 1 : 0);
  if (names != 2 && names != 5) {
    std::fprintf(
        stderr,
        "usage: planner_published FOLDER [MODEL CLUSTER MEASURED] "
        "[--sensitivity]\n");
    return 2;
  }
  const auto name = [&](int i, const char* usual) {
    return std::string(argv[1]) + "/" + (names == 5 ? argv[i] : usual);
  };
  const Files files = {
      name(2, "model_gpt2.json"),
      name(3, "cluster_homogeneous.json"),
      name(4, "runs_homogeneous.csv")};
  try {
    if (sensitivity) {
      show_sensitivity(files);
    } else {
      show_runs(files);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planner_published: %s\n", error.what());
    return 1;
  }
  return 0;
}
