#pragma once

#include <vector>

#include "tessera/transport/transport.h"

namespace tessera::transport {

/// Throws: ConfigError naming the option, its value and what is allowed.
void validate(const Options& options);

/// Returns whether this node has a core for each of its `local_ranks`, and these processes, some of
/// those ranks, may run on as many cores as they are: a launcher may have bound them to fewer.
bool core_for_each(int local_ranks, const std::vector<int>& processes);

} // namespace tessera::transport
