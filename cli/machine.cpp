#include "cli/machine.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <unistd.h>

#include <sched.h>

#include "tessera/base/error.h"

namespace tessera::cli {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return std::max(1U, std::thread::hardware_concurrency());
  }
  // Hardware threads of one core name the same siblings.
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) {
      continue;
    }
    const std::string siblings =
        first_line(str("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    cores.insert(siblings.empty() ? str("cpu ", cpu) : siblings);
  }
  return std::max(1, static_cast<int>(cores.size()));
}

} // namespace

int cores_of_quota(const std::string& cpu_max) {
  std::istringstream in(cpu_max);
  double quota_us = 0;
  double period_us = 0;
  if (!(in >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) {
    return 0;
  }
  return std::max(1, static_cast<int>(std::ceil(quota_us / period_us)));
}

Machine this_machine() {
  Machine machine;
  machine.cores = physical_cores();
  const int quota = cores_of_quota(first_line("/sys/fs/cgroup/cpu.max"));
  if (quota > 0) {
    machine.cores = std::min(machine.cores, quota);
  }
  machine.root = geteuid() == 0;
  return machine;
}

std::string host_name() {
  std::string name(256, '\0');
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.c_str() : "unknown";
}

} // namespace tessera::cli
