#pragma once

#include <string>

namespace tessera::cli {

/// What of this machine the launcher must know.
struct Machine {
  int cores = 1; // physical, that this process may use
  bool root = false;
};

/// Physical cores in this process's affinity mask, no more than the control
/// group's share of processor time: two hardware threads of one core do not
/// compute twice as fast, and a container's share may be below its mask.
Machine this_machine();

/// Reads "max 100000" or "150000 100000" (cgroup v2's cpu.max): the number of
/// cores' worth of time, rounded up; 0 when there is no limit or no sense.
int cores_of_quota(const std::string& cpu_max);

/// This host's name, "unknown" when the system does not tell.
std::string host_name();

} // namespace tessera::cli
