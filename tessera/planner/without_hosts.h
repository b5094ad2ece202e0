#pragma once

#include <string>
#include <vector>

#include "tessera/cost/cluster.h"

namespace tessera::planner {

/// Returns the cluster that is left without these hosts, with the links and collectives among the
/// others. A host is named as in the cluster file, or by the number of its node in the file, from
/// 0, where no host has this name. Throws: ConfigError naming the hosts that are there when one is
/// not, and when none is left.
cost::Cluster without_hosts(const cost::Cluster& cluster, const std::vector<std::string>& hosts);

} // namespace tessera::planner
