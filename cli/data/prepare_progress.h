#pragma once

#include <chrono>
#include <string>

#include "cli/redrawn_line.h"
#include "models/data/prepare.h"

namespace tessera::cli {

/// Shows on standard error how far a preparation is: as a line that is redrawn on a terminal, as a
/// further line every half minute elsewhere.
class PrepareProgressLine {
 public:
  PrepareProgressLine();
  ~PrepareProgressLine();
  PrepareProgressLine(const PrepareProgressLine&) = delete;
  PrepareProgressLine& operator=(const PrepareProgressLine&) = delete;

  void show(const data::PrepareProgress& progress);
  /// Erases the line from the terminal.
  void clear();

 private:
  bool terminal_;
  RedrawnLine line_{stderr};
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// Returns "tokenizing: 12.5 of 80.0 MB, 3.1 million tokens".
std::string progress_text(const data::PrepareProgress& progress);

} // namespace tessera::cli
