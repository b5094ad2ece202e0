#include <map>
#include <string>
#include <vector>

#include <metis.h>

#include "tessera/base/error.h"
#include "tessera/operations/problem.h"

namespace tessera::operations {

namespace {

constexpr double kWeightSum = 1e6; // METIS counts in whole numbers
constexpr idx_t kImbalance = 100; // in thousandths above even
constexpr double kGreatestEdge = 1e6;

// Bytes between neighbours, in both directions.
std::vector<std::map<int, double>> edges_of(const Problem& problem) {
  std::vector<std::map<int, double>> edges(problem.groups);
  for (const Problem::Net& net : problem.nets) {
    for (const int reader : net.readers) {
      const double bytes = static_cast<double>(net.bytes) + 1;
      edges[net.producer][reader] += bytes;
      edges[reader][net.producer] += bytes;
    }
  }
  return edges;
}

std::vector<int> numbered_by_first(const std::vector<idx_t>& parts) {
  std::map<idx_t, int> number;
  std::vector<int> result;
  for (const idx_t part : parts) {
    result.push_back(number.emplace(part, static_cast<int>(number.size())).first->second);
  }
  return result;
}

} // namespace

std::vector<int> divide_multilevel(const Problem& problem) {
  const std::vector<std::map<int, double>> edges = edges_of(problem);
  double greatest = 1;
  for (const auto& of_group : edges) {
    for (const auto& [other, bytes] : of_group) {
      greatest = std::max(greatest, bytes);
    }
  }
  std::vector<idx_t> begin{0};
  std::vector<idx_t> neighbour;
  std::vector<idx_t> edge_weight;
  std::vector<idx_t> weight;
  for (int group = 0; group < problem.groups; ++group) {
    for (const auto& [other, bytes] : edges[group]) {
      neighbour.push_back(other);
      edge_weight.push_back(1 + static_cast<idx_t>(bytes / greatest * kGreatestEdge));
    }
    begin.push_back(static_cast<idx_t>(neighbour.size()));
    for (const std::vector<double>& weights : problem.weights) {
      weight.push_back(static_cast<idx_t>(weights[group] / problem.parts * kWeightSum));
    }
  }
  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  options[METIS_OPTION_SEED] = 1;
  options[METIS_OPTION_NUMBERING] = 0;
  options[METIS_OPTION_CONTIG] = problem.contiguous ? 1 : 0;
  options[METIS_OPTION_UFACTOR] = kImbalance;
  auto vertices = static_cast<idx_t>(problem.groups);
  auto constraints = static_cast<idx_t>(problem.weights.size());
  auto parts = static_cast<idx_t>(problem.parts);
  idx_t cut_edges = 0;
  std::vector<idx_t> part_of_group(problem.groups, 0);
  const int status = METIS_PartGraphKway(
      &vertices,
      &constraints,
      begin.data(),
      neighbour.data(),
      weight.data(),
      /*vsize=*/nullptr,
      edge_weight.data(),
      &parts,
      /*tpwgts=*/nullptr,
      /*ubvec=*/nullptr,
      options,
      &cut_edges,
      part_of_group.data());
  if (status != METIS_OK) {
    throw PlanError(
        str("METIS could not divide ",
            problem.groups,
            " groups of operations into ",
            problem.parts,
            " parts (status ",
            status,
            "); choose a smaller pipeline_parallel_degree, or \"partition_mode\": \"modules\""));
  }
  return numbered_by_first(part_of_group);
}

} // namespace tessera::operations
