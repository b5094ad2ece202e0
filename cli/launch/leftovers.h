#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

/// Where runs keep the files that they remove at their end. Tests use other places.
struct LeftoverPlaces {
  std::string temporary; // folder of temporary files
  std::string shared_memory = "/dev/shm";
  std::string processes = "/proc";
  /// Younger files are kept, because a process may be about to use them.
  std::int64_t least_age_seconds = 60;

  /// Returns TMPDIR or /tmp, and the other places above.
  static LeftoverPlaces usual();
};

/// A file or folder that a killed run left on this host.
struct Leftover {
  std::string path;
  std::int64_t bytes = 0;
};

/// Finds what killed runs of this user left on this host: session folders of mpirun
/// and temporary folders of this program whose process has ended, and shared-memory
/// files of mpirun that no process has mapped. Files of other users and hosts are
/// never touched. Not collective. Threads: one at a time.
std::vector<Leftover> find_leftovers(const LeftoverPlaces& places);

/// Removes leftovers, skips those that cannot be removed, and returns those that are
/// gone. Not collective.
std::vector<Leftover> sweep(const std::vector<Leftover>& leftovers);

/// Returns "3 leftovers of killed runs (12.0 MiB)".
std::string summary(const std::vector<Leftover>& leftovers);

} // namespace tessera::cli
