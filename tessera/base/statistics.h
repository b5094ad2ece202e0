#pragma once

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

/// Returns the middle value, or the mean of the two middle values of an even number of values.
/// Throws: InternalError when `values` is empty.
inline double median(std::vector<double> values) {
  TESSERA_CHECK(!values.empty());
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  const double upper = *half;
  return values.size() % 2 == 1 ? upper : (*std::max_element(values.begin(), half) + upper) / 2;
}

} // namespace tessera
