#pragma once

#include "conformance.h"

namespace tessera::comm::conformance {

/// Of ProcessGroup::abandon and recover; part of `all_cases`.
const std::vector<Case>& recovery_cases();

} // namespace tessera::comm::conformance
