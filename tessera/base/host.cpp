#include "tessera/base/host.h"

#include <charconv>
#include <fstream>
#include <sstream>

#include <sys/resource.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {

namespace {

/// Returns the number after `key` in a file of "key value" lines, times 1024 when
/// the unit is kB; with an empty `key` the first word of the file.
std::optional<std::int64_t> number_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(key, 0) != 0) {
      continue;
    }
    std::istringstream words(line.substr(key.size()));
    std::string number;
    std::string unit;
    words >> number >> unit;
    std::int64_t value = 0;
    const char* end = number.data() + number.size();
    const auto result = std::from_chars(number.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) {
      return std::nullopt; // "max": no limit
    }
    return unit == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

/// Returns the smallest limit of a control group and of its parents, which all apply.
/// Inside a container the path that the kernel names may not be mounted; the
/// container's own group at the mount counts then.
void apply_limits(
    const std::string& mount,
    std::string path,
    const std::string& limit_file,
    const std::string& used_file,
    HostMemory& facts) {
  while (true) {
    const std::string folder = mount + path + "/";
    const auto limit = number_in(folder + limit_file, "");
    // Version 1 writes a number beyond all memory for "no limit".
    if (limit && *limit < facts.group_limit.value_or(facts.total)) {
      facts.group_limit = limit;
      facts.group_used = number_in(folder + used_file, "");
    }
    if (path.empty()) {
      return;
    }
    path.erase(path.rfind('/'));
  }
}

void read_group(const std::string& root, HostMemory& facts) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // "0::/path" is version 2, "4:memory:/path" version 1.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string kinds = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') {
      continue;
    }
    const std::string mount = root + "/sys/fs/cgroup";
    if (kinds.empty()) {
      apply_limits(mount, path, "memory.max", "memory.current", facts);
    } else if (kinds == "memory") {
      apply_limits(
          mount + "/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", facts);
    }
  }
}

} // namespace

std::optional<double> busy_processor_seconds(const std::string& root) {
  std::ifstream file(root + "/proc/stat");
  std::string name;
  // The kernel's columns: user, nice, system, idle, waiting for files, two of interrupts, stolen.
  double user = 0;
  double nice = 0;
  double system = 0;
  double idle = 0;
  double waiting = 0;
  double interrupts = 0;
  double soft_interrupts = 0;
  double stolen = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >>
      stolen;
  if (!file || name != "cpu") {
    return std::nullopt;
  }
  return (user + nice + system + interrupts + soft_interrupts + stolen) /
         static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::string machine_id(const std::string& root) {
  std::ifstream file(root + "/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

HostMemory host_memory(const std::string& root) {
  HostMemory facts;
  const std::string path = root + "/proc/meminfo";
  const auto total = number_in(path, "MemTotal:");
  const auto available = number_in(path, "MemAvailable:");
  if (!total || !available) {
    throw Error(str(path, " has no MemTotal and MemAvailable; is it mounted?"));
  }
  facts.total = *total;
  facts.available = *available;
  read_group(root, facts);
  return facts;
}

} // namespace tessera
