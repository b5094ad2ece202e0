#pragma once

// This header is private to .cpp files that read or write files with degrees; it is not installed.

#include "tessera/base/json/field.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::topology {

template <typename Visit>
void describe(Visit& visit, Degrees& degrees) {
  visit({.name = "pipeline", .bounds = form::at_least(0)}, degrees.pipeline);
  visit({.name = "tensor", .bounds = form::at_least(0)}, degrees.tensor);
  visit({.name = "reduced_data", .bounds = form::at_least(0)}, degrees.reduced_data);
}

} // namespace tessera::topology
