#pragma once

#include <vector>

namespace tessera::planner {

/// Returns Spearman's coefficient, from -1 to 1: Pearson's coefficient of the ranks,
/// where equal values share their mean rank. It is 0 if all values of a list are equal.
/// Throws: InternalError when the lists differ in length.
double spearman(const std::vector<double>& a, const std::vector<double>& b);

} // namespace tessera::planner
