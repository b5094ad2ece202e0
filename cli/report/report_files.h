#pragma once

#include <string>

#include "tessera/report/run_log.h"

namespace tessera::cli {

/// Returns the run log that `path` names: itself, or that of a folder: its `log.jsonl`, else its
/// only file that ends in .jsonl.
/// Throws: ConfigError for a folder with none, or with several, which it lists.
std::string log_of(const std::string& path);

/// Writes the event file of a run into a folder, which is made when it is missing, over that of an
/// earlier export of the same run; returns its path.
/// Throws: ConfigError when the folder holds event files of other runs, which TensorBoard would
/// draw as one curve with this one; Error when nothing can be written.
std::string write_event_file(const std::string& folder, const report::RunLog& log);

} // namespace tessera::cli
