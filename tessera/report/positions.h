#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/report/run_log.h"

namespace tessera::report {

/// Where a logged step stands in its training.
struct Position {
  std::size_t start = 0; // index into RunLog::starts of the start that ran it
  std::int64_t tokens = 0; // in the steps of the log up to this one, itself included
  /// The time the starts had run when it ended, without the pauses between them; nullopt when its
  /// record has no time.
  std::optional<double> seconds;
};

/// Returns one position for each of `log.steps`, in their order. What ran before the first step of
/// the log is not counted. All are empty for a log without starts.
std::vector<Position> positions(const RunLog& log);

} // namespace tessera::report
