#pragma once

#include <string>
#include <vector>

namespace tessera::report {

struct Bar {
  std::string label;
  double value = 0; // the long bar
  double inner = 0; // a darker part of it, 0 for none
  std::string text; // beside the bar
};

/// Horizontal bars as wide as their container allows; the greatest value has the full width.
std::string bar_chart(const std::vector<Bar>& bars);

} // namespace tessera::report
