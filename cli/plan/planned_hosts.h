#pragma once

#include <string>

#include "tessera/cost/cluster.h"
#include "tessera/planner/candidate.h"

namespace tessera::cli {

/// Returns the hosts that a plan uses as a host file of `tessera launch`: one a line with as many
/// slots as it has devices, in the order in which the plan places ranks. Hosts that it leaves out
/// are comments.
/// Throws: ConfigError for a cluster whose nodes have no host names, or that names one twice.
std::string hostfile_text(const planner::Candidate& candidate, const cost::Cluster& cluster);

/// Returns the names of the hosts that a plan leaves idle, with commas, or the numbers of nodes
/// without names; "" when it uses all.
std::string idle_hosts(const planner::Candidate& candidate, const cost::Cluster& cluster);

} // namespace tessera::cli
