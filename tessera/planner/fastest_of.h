#pragma once

// Private to the planner.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// Returns the indices of the candidates that `is_eligible(const Candidate&)` accepts, by
/// Candidate::seconds, fastest first and equally fast ones in their order; at most `most`.
template <typename Predicate>
std::vector<std::size_t>
fastest_of(const std::vector<Candidate>& candidates, std::size_t most, Predicate is_eligible) {
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (is_eligible(candidates[i])) {
      order.emplace_back(candidates[i].seconds(), i);
    }
  }
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), most));
  std::vector<std::size_t> indices;
  for (const auto& [seconds, index] : order) {
    indices.push_back(index);
  }
  return indices;
}

} // namespace tessera::planner
