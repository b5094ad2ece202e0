#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace tessera::optim {

/// Where this environment variable is 1, rank 0 writes a line to the standard error after each
/// update but the first: how long ago the update before was. `tessera plan --trials` times programs
/// by it of which it knows nothing else.
inline constexpr const char* kStepSecondsVariable = "TESSERA_STEP_SECONDS";
/// What such a line begins with; the number of the update and the seconds follow.
inline constexpr const char* kStepSecondsLine = "tessera: seconds of update ";

/// The updates of one optimizer. Threads: one at a time.
class StepSeconds {
 public:
  StepSeconds();
  /// Called at the end of every update. Not collective.
  void updated(int rank);

 private:
  bool asked_;
  std::int64_t updates_ = 0;
  std::optional<std::chrono::steady_clock::time_point> last_;
};

} // namespace tessera::optim
