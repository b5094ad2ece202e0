#pragma once

#include <algorithm>
#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace tessera::testing {

// The type of the totals differs between libtorch versions.
template <typename Method>
struct Totals;
template <typename Class, typename Total>
struct Totals<void (Class::*)(void*, std::int64_t, Total, Total, c10::Device)> {
  using type = Total;
};
using Total = Totals<decltype(&c10::MemoryReportingInfoBase::reportMemoryUsage)>::type;

/// Bytes that this thread's tensors took and did not give back.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(
      void* /*memory*/,
      std::int64_t size,
      Total /*allocated*/,
      Total /*reserved*/,
      c10::Device /*device*/) override {
    bytes += size;
    highest = std::max(highest, bytes);
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }
  std::int64_t bytes = 0;
  std::int64_t highest = 0;
};

} // namespace tessera::testing
