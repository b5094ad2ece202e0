#pragma once

#include "tessera/transport/transport.h"

namespace tessera::transport {

/// Throws: ConfigError naming the option, its value and what is allowed.
void validate(const Options& options);

/// Returns whether this node has a core for each of `local_ranks`.
bool core_for_each(int local_ranks);

} // namespace tessera::transport
