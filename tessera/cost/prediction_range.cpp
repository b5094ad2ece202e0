#include "tessera/cost/prediction_range.h"

namespace tessera::cost {

namespace {

// These are the 5th and the 95th of a hundred ratios of measured to estimated figures.
// tests/unit/accuracy/range_test.cpp makes each of them from its rows.
constexpr Range kSizedSeconds = {0.828, 3.029};
constexpr Range kMeasuredSeconds = {0.717, 0.889};
constexpr Range kTracedSeconds = {0.897, 1.475};
constexpr Range kSizedMemory = {0.856, 1.236};

Range times(const Range& range, double value) {
  return {range.low * value, range.high * value};
}

} // namespace

Range seconds_range(const DescribedModel& model, const Cluster& cluster, double seconds) {
  if (model.sized() != nullptr || (model.traced() != nullptr && !cluster.measured)) {
    return times(kSizedSeconds, seconds);
  }
  return times(model.traced() != nullptr ? kTracedSeconds : kMeasuredSeconds, seconds);
}

std::optional<Range> memory_range(const DescribedModel& model, double bytes) {
  if (model.sized() == nullptr) {
    return std::nullopt;
  }
  return times(kSizedMemory, bytes);
}

} // namespace tessera::cost
