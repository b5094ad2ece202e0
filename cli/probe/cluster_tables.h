#pragma once

#include <string>

#include "tessera/cost/cluster.h"

namespace tessera::cli {

/// Returns a measured cluster as tables for people.
std::string to_tables(const cost::Cluster& cluster);

} // namespace tessera::cli
