#pragma once

#include <vector>

namespace tessera::planner {

/// Spearman's coefficient: Pearson's of the ranks, equal values sharing the
/// mean of theirs. Returns: -1 to 1; 0 when either list is all one value.
/// Throws: InternalError when the lists differ in length.
double spearman(const std::vector<double>& a, const std::vector<double>& b);

} // namespace tessera::planner
