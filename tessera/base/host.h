#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

/// The memory of this machine and of this process's control group.
/// Units: bytes.
struct HostMemory {
  std::int64_t total = 0;
  std::int64_t available = 0;
  std::optional<std::int64_t> group_limit;
  std::optional<std::int64_t> group_used;

  /// Returns the memory that this process and those of its group can still take.
  std::int64_t free() const {
    return group_limit ? std::min(available, *group_limit - group_used.value_or(0)) : available;
  }
};

/// Reads it from the system; control groups of version 2 or 1. `root` stands before every path: ""
/// but in tests.
/// Throws: Error when the system does not tell.
HostMemory host_memory(const std::string& root = "");

/// Seconds for which this machine's processors have worked since it was started, all together, with
/// what a hypervisor took from them; nullopt where the system does not tell. `root` as above.
std::optional<double> busy_processor_seconds(const std::string& root = "");
/// Those for which they worked for this process, all threads.
double own_processor_seconds();
/// Identifies the running machine, whatever names it has in namespaces; "" where it does not tell.
std::string machine_id(const std::string& root = "");

/// "model name" of /proc/cpuinfo.
std::string processor_name();

} // namespace tessera
