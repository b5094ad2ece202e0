#pragma once

#include <string>

#include "cli/doctor/facts.h"

namespace tessera::cli::doctor {

/// "model name" of /proc/cpuinfo.
std::string processor_name();

/// Of this machine and of this process's control group (version 2 or 1).
/// `root` stands before every path: "" but in tests.
MemoryFacts memory_facts(const std::string& root = "");

} // namespace tessera::cli::doctor
