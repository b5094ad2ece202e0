#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

#include "tessera/report/run_log.h"

#include "cli/redrawn_line.h"

namespace tessera::cli {

/// Whether only warnings are said: tessera -q, or TESSERA_LOG as it sets it.
bool is_quiet();

/// What the user sees of a run: a bar that is redrawn on a terminal, a plain
/// line every `every` steps elsewhere. Only rank 0 has one.
class Progress {
 public:
  Progress(std::int64_t first, std::int64_t total, std::int64_t every);

  void step(const report::StepRecord& record);
  /// A line of its own, above the bar.
  void note(const std::string& text);
  void finish();

 private:
  std::int64_t first_;
  std::int64_t total_;
  std::int64_t every_;
  bool terminal_;
  RedrawnLine line_{stdout};
  /// When the last steps ended, the first of them first; at the beginning, when the run began.
  std::deque<std::chrono::steady_clock::time_point> ends_;
};

/// Resident memory of this process. Units: bytes. 0 when not known.
std::int64_t resident_bytes();

} // namespace tessera::cli
