#include "tessera/autotune/probe/pairs_to_measure.h"

#include <algorithm>
#include <map>
#include <set>

namespace tessera::autotune {

namespace {

using Pairs = std::set<std::pair<int, int>>;

/// Returns `count` of the values or all of them, evenly spread, with the first and the last.
std::vector<int> spread(const std::vector<int>& values, std::size_t count) {
  if (values.size() <= count) {
    return values;
  }
  std::vector<int> chosen;
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(values[i * (values.size() - 1) / (count - 1)]);
  }
  return chosen;
}

void add(int a, int b, Pairs& pairs) {
  pairs.insert(std::minmax(a, b));
}

void add_all(const std::vector<int>& ranks, Pairs& pairs) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) {
      add(ranks[i], ranks[j], pairs);
    }
  }
}

/// Returns the ranks of each host, hosts in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(const std::vector<std::string>& host_of_rank) {
  std::map<std::string, std::size_t> index;
  std::vector<std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const auto [host, is_new] = index.emplace(host_of_rank[rank], ranks.size());
    if (is_new) {
      ranks.emplace_back();
    }
    ranks[host->second].push_back(static_cast<int>(rank));
  }
  return ranks;
}

} // namespace

std::vector<std::pair<int, int>> pairs_to_measure(
    const std::vector<std::string>& host_of_rank,
    int most_ranks) {
  const auto most = static_cast<std::size_t>(std::max(most_ranks, 2));
  const auto by_host = ranks_by_host(host_of_rank);
  std::vector<int> chosen;
  std::vector<int> first_of_host;
  Pairs pairs;
  for (const std::vector<int>& ranks : by_host) {
    const auto here = spread(ranks, std::max<std::size_t>(2, most / by_host.size()));
    add_all(here, pairs);
    chosen.insert(chosen.end(), here.begin(), here.end());
    first_of_host.push_back(here.front());
  }
  if (host_of_rank.size() <= most) {
    chosen.resize(host_of_rank.size());
    for (std::size_t rank = 0; rank < chosen.size(); ++rank) {
      chosen[rank] = static_cast<int>(rank);
    }
  }
  if (chosen.size() <= most) {
    add_all(chosen, pairs);
  } else {
    for (std::size_t host = 1; host < first_of_host.size(); ++host) {
      add(first_of_host[host - 1], first_of_host[host], pairs);
    }
    add_all(spread(first_of_host, most), pairs);
  }
  return {pairs.begin(), pairs.end()};
}

} // namespace tessera::autotune
