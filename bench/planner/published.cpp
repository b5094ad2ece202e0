// Prices the runs that the AMP paper measured and compares the order.
// usage: planner_published FOLDER [MODEL CLUSTER MEASURED]
// FOLDER holds the published inputs; the last three name files in it.
#include <cmath>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
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

int run(int argc, char** argv) {
  const std::string folder = std::string(argv[1]) + "/";
  const auto name = [&](int i, const char* usual) {
    return folder + (argc > i ? argv[i] : usual);
  };
  const std::string table = name(4, "measured_homogeneous.csv");
  const auto rows = rows_of(tessera::planner::price_table(
      tessera::planner::read_text_file(table),
      table,
      tessera::planner::load_model(name(2, "model_gpt2.json")),
      tessera::planner::load_cluster(name(3, "cluster_homogeneous.json"))));
  const std::size_t measured = column(rows[0], "measured_s");
  const std::size_t predicted = column(rows[0], "predicted_s");
  const std::size_t memory = column(rows[0], "memory_gib");
  std::vector<double> x;
  std::vector<double> y;
  std::size_t fastest = 0;
  std::size_t first = 0;
  int wrongly_refused = 0;
  int wrongly_accepted = 0;
  double most_fitting = 0;
  double least_failing = INFINITY;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const double took = std::stod(rows[i][measured]);
    const double estimate = std::stod(rows[i][predicted]);
    const double gib = std::stod(rows[i][memory]);
    std::printf(
        "%3s %3s %3s %3s  measured %8.3f  predicted %8.3f  memory %6.2f GiB\n",
        rows[i][0].c_str(),
        rows[i][1].c_str(),
        rows[i][2].c_str(),
        rows[i][3].c_str(),
        took,
        estimate,
        gib);
    if (std::isinf(took)) {
      wrongly_accepted += std::isinf(estimate) ? 0 : 1;
      least_failing = std::min(least_failing, gib);
      continue;
    }
    most_fitting = std::max(most_fitting, gib);
    wrongly_refused += std::isinf(estimate) ? 1 : 0;
    x.push_back(took);
    y.push_back(estimate);
    if (fastest == 0 || took < std::stod(rows[fastest][measured])) {
      fastest = i;
    }
    if (first == 0 || estimate < std::stod(rows[first][predicted])) {
      first = i;
    }
  }
  std::printf(
      "%zu finished runs: Spearman %.4f; the fastest is %s\n"
      "finished but refused: %d (most memory %.2f GiB)\n"
      "failed but accepted: %d (least memory %.2f GiB)\n",
      x.size(),
      tessera::planner::spearman(x, y),
      fastest == first ? "predicted first" : "not predicted first",
      wrongly_refused,
      most_fitting,
      wrongly_accepted,
      least_failing);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 5) {
    std::fprintf(
        stderr, "usage: planner_published FOLDER [MODEL CLUSTER MEASURED]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planner_published: %s\n", error.what());
    return 1;
  }
}
