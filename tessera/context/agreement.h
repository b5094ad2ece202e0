#pragma once

#include <optional>
#include <set>
#include <string>

#include "tessera/comm/world.h"

/// One rank's problem is every rank's error, so that none waits for it in a later collective.
/// Collective over `group`. Threads: step thread only.
namespace tessera {

/// Returns the problem of the first rank of the group that has one; nullopt when none has.
std::optional<std::string> first_problem(
    comm::World& world,
    const comm::ProcessGroup& group,
    const std::optional<std::string>& mine);

/// Throws: E with the first rank's problem, on every rank of the group.
template <typename E>
void throw_first_problem(
    comm::World& world,
    const comm::ProcessGroup& group,
    const std::optional<std::string>& mine) {
  if (const auto problem = first_problem(world, group, mine)) {
    throw E(*problem);
  }
}

/// The problems of all ranks.
std::set<std::string>
all_problems(comm::World& world, const comm::ProcessGroup& group, std::set<std::string> mine);

/// `title` and a line for each entry.
std::string listed(const std::string& title, const std::set<std::string>& problems);

} // namespace tessera
