#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

/// Where runs put what they remove at their end. Other places are for tests.
struct LeftoverPlaces {
  std::string temporary; // folder of temporary files
  std::string shared_memory = "/dev/shm";
  std::string processes = "/proc";
  /// What is younger is left alone: a process may be about to use it.
  std::int64_t least_age_seconds = 60;

  /// TMPDIR or /tmp, and the usual others.
  static LeftoverPlaces usual();
};

/// Something that a killed run left on this host.
struct Leftover {
  std::string path;
  std::int64_t bytes = 0;
};

/// Session folders of mpirun, its shared-memory files and temporary folders of
/// this program, of this user and this host, whose process is gone and that no
/// process has mapped. A process of another user or host is never judged.
/// Not collective. Threads: one at a time.
std::vector<Leftover> find_leftovers(const LeftoverPlaces& places);

/// Removes them; what cannot be removed is passed over. Returns those that are
/// gone. Not collective.
std::vector<Leftover> sweep(const std::vector<Leftover>& leftovers);

/// "3 leftovers of killed runs (12.0 MiB)".
std::string summary(const std::vector<Leftover>& leftovers);

} // namespace tessera::cli
