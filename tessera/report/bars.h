#pragma once

#include <string>
#include <vector>

namespace tessera::report {

struct Bar {
  std::string label;
  double value = 0; // length of the bar
  double inner = 0; // length of its darker part, 0 for none
  std::string text; // shown beside the bar
};

/// Returns horizontal bars as wide as their container allows; the greatest value has the full
/// width.
std::string bar_chart(const std::vector<Bar>& bars);

} // namespace tessera::report
