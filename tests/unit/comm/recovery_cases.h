#pragma once

#include "conformance.h"

namespace tessera::comm::conformance {

/// Of comm/recoverable.h; part of `all_cases`.
const std::vector<Case>& recovery_cases();

} // namespace tessera::comm::conformance
