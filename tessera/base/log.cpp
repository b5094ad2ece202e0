#include "tessera/base/log.h"

#include <cstdlib>
#include <memory>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "tessera/base/error.h"

namespace tessera::log {

namespace {

spdlog::level::level_enum level_of_environment() {
  const char* name = std::getenv("TESSERA_LOG");
  return name == nullptr ? spdlog::level::info : spdlog::level::from_str(name);
}

// The logger is never destroyed, because destructors of static objects may still write.
spdlog::logger& logger() {
  static spdlog::logger* const made = [] {
    auto* result = new spdlog::logger("tessera", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    result->set_pattern("%n: %v");
    result->set_level(level_of_environment());
    result->flush_on(spdlog::level::trace);
    return result;
  }();
  return *made;
}

} // namespace

void set_rank(int rank) {
  logger().set_pattern(rank == 0 ? "%n: %v" : str("%n: rank ", rank, ": %v"));
}

void debug(const std::string& text) {
  logger().debug("{}", text);
}

void info(const std::string& text) {
  logger().info("{}", text);
}

void warning(const std::string& text) {
  logger().warn("warning: {}", text);
}

void error(const std::string& text) {
  logger().error("error: {}", text);
}

} // namespace tessera::log
