#include "cli/report/report_files.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/report/export/tensorboard.h"

#include "cli/text_file.h"

namespace tessera::cli {

namespace fs = std::filesystem;

std::string log_of(const std::string& path) {
  std::error_code failure;
  if (!fs::is_directory(path, failure)) {
    return path; // what is wrong with it, if anything, its reader says
  }
  const fs::path usual = fs::path(path) / "log.jsonl";
  if (fs::exists(usual, failure)) {
    return usual.string();
  }
  std::vector<std::string> logs;
  for (fs::directory_iterator entry(path, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (entry->path().extension() == ".jsonl") {
      logs.push_back(entry->path().string());
    }
  }
  if (failure) {
    throw ConfigError(str("cannot read folder '", path, "': ", failure.message()));
  }
  if (logs.empty()) {
    throw ConfigError(
        str("folder '", path, "' holds no run log: neither log.jsonl nor another .jsonl file"));
  }
  if (logs.size() > 1) {
    std::sort(logs.begin(), logs.end());
    throw ConfigError(
        str("folder '", path, "' holds several logs; name one of them: ", join(logs, ", ")));
  }
  return logs.front();
}

std::string write_event_file(const std::string& folder, const report::RunLog& log) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) {
    throw Error(str("cannot make folder '", folder, "': ", failure.message()));
  }
  const std::string name = report::event_file_name(log);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string other = entry.path().filename().string();
    if (other != name && other.find("tfevents") != std::string::npos) {
      throw ConfigError(
          str("folder '",
              folder,
              "' holds events of another run, ",
              other,
              ", which TensorBoard would draw as one curve with this run; give each run a folder "
              "of its own"));
    }
  }
  std::string path = (fs::path(folder) / name).string();
  write_text_file(path, report::to_event_file(log));
  return path;
}

} // namespace tessera::cli
