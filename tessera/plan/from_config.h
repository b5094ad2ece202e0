#pragma once

#include "tessera/config/config.h"
#include "tessera/plan/plan.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::plans {

/// The degrees a configuration gives `world_size` processes.
/// Throws: ConfigError as config::check_world.
topology::Degrees degrees(const config::Config& config, int world_size);

/// Everything of a plan that the configuration says: degrees, placement,
/// schedule, microbatches. The partition is left empty for the partitioner (or
/// for config.partition) to fill.
/// Throws: ConfigError as config::check_world, and for a custom schedule that
/// does not fit the microbatches.
Plan plan_from_config(const config::Config& config, int world_size);

} // namespace tessera::plans
