#pragma once

#include <string>

namespace tessera::cli {

/// What the launcher must know of this machine.
struct Machine {
  int cores = 1; // physical, that this process may use
  bool root = false;
};

/// Returns the number of physical cores in this process's affinity mask, limited by the control
/// group's share of processor time. Two hardware threads of one core do not compute twice as fast,
/// and the share of a container may be less than its mask.
Machine this_machine();

/// Returns how many cores a text such as "max 100000" or "150000 100000" (cpu.max of cgroup v2)
/// allows, rounded up; 0 when it sets no limit or has another form.
int cores_of_quota(const std::string& cpu_max);

/// Returns this host's name, "unknown" when the system does not say it.
std::string host_name();

} // namespace tessera::cli
