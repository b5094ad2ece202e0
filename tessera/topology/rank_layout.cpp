#include "tessera/topology/rank_layout.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::topology {

namespace {

// Returns whether two ranks are in one group of this kind.
bool together(Group group, const Coordinates& a, const Coordinates& b) {
  const bool same_rdp = a.rdp == b.rdp;
  const bool same_pp = a.pp == b.pp;
  const bool same_tp = a.tp == b.tp;
  switch (group) {
    case Group::kWorld:
      return true;
    case Group::kPP:
      return same_rdp && same_tp;
    case Group::kTP:
      return same_rdp && same_pp;
    case Group::kDP:
      return same_pp;
    case Group::kRDP:
      return same_pp && same_tp;
    case Group::kMP:
      return same_rdp;
  }
  return false;
}

} // namespace

PlacementStrategy::PlacementStrategy(std::string_view strategy) : letters_(strategy) {
  if (strategy == "cluster") {
    letters_ = "DPT";
  } else if (strategy == "spread") {
    letters_ = "TPD";
  }
  std::string sorted = letters_;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != "DPT") {
    throw ConfigError(
        str("placement_strategy: found \"",
            strategy,
            "\"; write \"cluster\", \"spread\" or a permutation of the "
            "letters D, P, T such as \"PTD\""));
  }
}

std::string_view name_of(Group group) {
  switch (group) {
    case Group::kWorld:
      return "world";
    case Group::kPP:
      return "pp";
    case Group::kTP:
      return "tp";
    case Group::kDP:
      return "dp";
    case Group::kRDP:
      return "rdp";
    case Group::kMP:
      return "mp";
  }
  return "?";
}

RankLayout::RankLayout(Degrees degrees, PlacementStrategy placement)
    : degrees_(degrees), placement_(std::move(placement)) {
  if (degrees.pipeline < 1 || degrees.tensor < 1 || degrees.reduced_data < 1) {
    throw ConfigError(
        str("every parallel degree must be at least 1; found pipeline ",
            degrees.pipeline,
            ", tensor ",
            degrees.tensor,
            ", reduced data ",
            degrees.reduced_data));
  }
}

Coordinates RankLayout::coordinates(int rank) const {
  TESSERA_CHECK(rank >= 0 && rank < world_size(), "rank ", rank);
  Coordinates at;
  const std::string& letters = placement_.letters();
  for (auto letter = letters.rbegin(); letter != letters.rend(); ++letter) {
    const auto take = [&rank](int size) {
      const int value = rank % size;
      rank /= size;
      return value;
    };
    if (*letter == 'D') {
      at.rdp = take(degrees_.reduced_data);
    } else if (*letter == 'P') {
      at.pp = take(degrees_.pipeline);
    } else {
      at.tp = take(degrees_.tensor);
    }
  }
  return at;
}

std::vector<int> RankLayout::members(Group group, int rank) const {
  const Coordinates mine = coordinates(rank);
  std::vector<int> ranks;
  for (int other = 0; other < world_size(); ++other) {
    if (together(group, mine, coordinates(other))) {
      ranks.push_back(other);
    }
  }
  return ranks;
}

std::vector<std::vector<int>> RankLayout::all(Group group) const {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world_size(); ++rank) {
    auto ranks = members(group, rank);
    if (ranks.front() == rank) {
      groups.push_back(std::move(ranks));
    }
  }
  return groups;
}

int RankLayout::rank_in(Group group, int rank) const {
  const auto ranks = members(group, rank);
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

int RankLayout::size_of(Group group) const {
  switch (group) {
    case Group::kWorld:
      return world_size();
    case Group::kPP:
      return degrees_.pipeline;
    case Group::kTP:
      return degrees_.tensor;
    case Group::kDP:
      return degrees_.tensor * degrees_.reduced_data;
    case Group::kRDP:
      return degrees_.reduced_data;
    case Group::kMP:
      return degrees_.pipeline * degrees_.tensor;
  }
  return 0;
}

} // namespace tessera::topology
