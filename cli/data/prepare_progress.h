#pragma once

#include <chrono>
#include <string>

#include "models/data/prepare.h"

namespace tessera::cli {

/// What the user sees of a preparation on standard error: a line that is redrawn on a terminal, one
/// more line every half minute elsewhere.
class PrepareProgressLine {
 public:
  PrepareProgressLine();
  ~PrepareProgressLine();
  PrepareProgressLine(const PrepareProgressLine&) = delete;
  PrepareProgressLine& operator=(const PrepareProgressLine&) = delete;

  void show(const data::PrepareProgress& progress);
  /// Takes the line away.
  void clear();

 private:
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// "tokenizing: 12.5 of 80.0 MB, 3.1 million tokens"
std::string progress_text(const data::PrepareProgress& progress);

} // namespace tessera::cli
