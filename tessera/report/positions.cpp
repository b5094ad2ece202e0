#include "tessera/report/positions.h"

#include <algorithm>

namespace tessera::report {

std::vector<Position> positions(const RunLog& log) {
  std::vector<Position> result(log.steps.size());
  if (log.starts.empty()) {
    return result;
  }
  std::vector<double> before; // each start: the time that all starts before it ran
  double ran = 0;
  for (const Start& start : log.starts) {
    before.push_back(ran);
    ran += start.elapsed_seconds;
  }
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < log.steps.size(); ++i) {
    const StepRecord& step = log.steps[i];
    // The log keeps a step as the last start ran it that began at or before it. First steps need
    // not ascend, since a start that is rolled back begins before earlier ones.
    const auto last = std::find_if(log.starts.rbegin(), log.starts.rend(), [&](const Start& start) {
      return start.facts.first_step <= step.step;
    });
    Position& position = result[i];
    position.start =
        last == log.starts.rend() ? 0 : static_cast<std::size_t>(log.starts.rend() - last) - 1;
    tokens += log.starts[position.start].facts.tokens_per_step;
    position.tokens = tokens;
    if (step.elapsed_seconds) {
      position.seconds = before[position.start] + *step.elapsed_seconds;
    }
  }
  return result;
}

} // namespace tessera::report
