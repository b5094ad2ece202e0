#pragma once

#include <set>

namespace tessera::data_parallel {

/// Parameters by the address of their tensor.
using ParameterSet = std::set<const void*>;

} // namespace tessera::data_parallel
