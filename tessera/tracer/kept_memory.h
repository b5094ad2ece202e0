#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace tessera::tracer {

/// Measures what each module of a forward keeps in memory for its backward: the bytes that were
/// allocated during its calls, outside of the calls of modules inside of it, and still live when
/// the call ends. Its results are among them; what came in as arguments is not.
///
/// The memory of one module at a time is held: what a call returned goes on without its history.
/// Threads: allocations of any thread that works for the constructing one are counted; calls belong
/// to that thread. Not collective.
/// Source: Karakus et al. 2021, appendix C.1, activation memory.
class KeptMemory {
 public:
  /// From here to the destructor this thread's allocations are reported.
  KeptMemory();
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  /// A call begins: it is the innermost one until it ends.
  void begin_call();
  /// The innermost call ends, and its results still live: the bytes that it keeps.
  std::int64_t end_call();
  /// The call was left by an exception.
  void abandon_call();

  /// The same values in tensors without history, which need gradients where the results did. They
  /// are copies, as a forward may change them in place, and belong to no call.
  c10::IValue without_history(const c10::IValue& results);

 private:
  class Report;
  std::shared_ptr<Report> report_;
  c10::DebugInfoGuard guard_;
};

} // namespace tessera::tracer
