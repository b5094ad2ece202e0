#include "cli/launch/leftovers.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"

#include "cli/machine.h"

namespace tessera::cli {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path());
  }
  return paths;
}

/// Returns the process number between `prefix` and the end or the next '-'; nullopt for other
/// names.
std::optional<std::int64_t> process_in(const std::string& name, const std::string& prefix) {
  if (name.compare(0, prefix.size(), prefix) != 0) {
    return std::nullopt;
  }
  std::int64_t process = 0;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + prefix.size(), end, process);
  const bool ended = result.ptr == end || *result.ptr == '-';
  return result.ec == std::errc() && ended && process > 0 ? std::optional(process) : std::nullopt;
}

/// Returns whether this user owns the path and it is old enough. Symbolic links never are
/// removable.
bool removable(const fs::path& path, std::int64_t least_age_seconds) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || info.st_uid != ::getuid() || S_ISLNK(info.st_mode)) {
    return false;
  }
  // time() may lag behind the clock of the file system by a tick, and be a second behind for it.
  const std::int64_t age = ::time(nullptr) - info.st_mtime;
  return std::max<std::int64_t>(age, 0) >= least_age_seconds;
}

std::int64_t bytes_of(const fs::path& path) {
  std::int64_t bytes = 0;
  const auto add = [&](const fs::path& file) {
    struct stat info {};
    if (::lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      bytes += static_cast<std::int64_t>(info.st_blocks) * 512;
    }
  };
  add(path);
  std::error_code error;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    add(it->path());
  }
  return bytes;
}

/// Returns the files of `folder` that a process has mapped; nullopt when the maps of
/// one of this user's processes cannot be read.
std::optional<std::set<std::string>> mapped_files(
    const std::string& processes,
    const std::string& folder) {
  std::set<std::string> mapped;
  for (const fs::path& process : entries_of(processes)) {
    struct stat info {};
    const std::string name = process.filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos ||
        ::stat(process.c_str(), &info) != 0 || info.st_uid != ::getuid()) {
      continue;
    }
    std::ifstream file(process / "maps");
    if (!file && fs::exists(process)) {
      return std::nullopt;
    }
    for (std::string line; std::getline(file, line);) {
      const auto at = line.find(folder + "/");
      if (at != std::string::npos) {
        mapped.insert(line.substr(at, line.find(" (deleted)") - at));
      }
    }
  }
  return mapped;
}

} // namespace

LeftoverPlaces LeftoverPlaces::usual() {
  LeftoverPlaces places;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* folder = std::getenv("TMPDIR");
  places.temporary = folder != nullptr && *folder != '\0' ? folder : "/tmp";
  return places;
}

std::vector<Leftover> find_leftovers(const LeftoverPlaces& places) {
  std::vector<Leftover> found;
  const std::string owner = str(host_name(), ".", ::getuid());
  const auto consider = [&](const fs::path& path, const std::string& prefix) {
    const auto process = process_in(path.filename().string(), prefix);
    if (process && !fs::exists(fs::path(places.processes) / std::to_string(*process)) &&
        removable(path, places.least_age_seconds)) {
      found.push_back({path.string(), bytes_of(path)});
    }
  };
  for (const fs::path& path : entries_of(fs::path(places.temporary) / ("ompi." + owner))) {
    consider(path, "pid.");
  }
  for (const fs::path& path : entries_of(places.temporary)) {
    consider(path, "tessera-ends-");
    consider(path, "tessera-trials-");
    consider(path, "tessera-tokens-");
  }
  std::vector<fs::path> segments;
  for (const fs::path& path : entries_of(places.shared_memory)) {
    const std::string prefix = "vader_segment." + owner + ".";
    if (path.filename().string().compare(0, prefix.size(), prefix) == 0 &&
        removable(path, places.least_age_seconds)) {
      segments.push_back(path);
    }
  }
  if (!segments.empty()) {
    const auto mapped = mapped_files(places.processes, places.shared_memory);
    for (const fs::path& path : segments) {
      if (mapped && mapped->count(path.string()) == 0) {
        found.push_back({path.string(), bytes_of(path)});
      }
    }
  }
  return found;
}

std::vector<Leftover> sweep(const std::vector<Leftover>& leftovers) {
  std::vector<Leftover> gone;
  for (const Leftover& leftover : leftovers) {
    std::error_code error;
    fs::remove_all(leftover.path, error);
    if (!error) {
      gone.push_back(leftover);
    }
  }
  return gone;
}

std::string summary(const std::vector<Leftover>& leftovers) {
  std::int64_t bytes = 0;
  for (const Leftover& leftover : leftovers) {
    bytes += leftover.bytes;
  }
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << leftovers.size() << (leftovers.size() == 1 ? " leftover" : " leftovers")
       << " of killed runs (" << static_cast<double>(bytes) / (1 << 20) << " MiB)";
  return text.str();
}

} // namespace tessera::cli
