#pragma once

#include "tessera/comm/collective.h"

namespace tessera::comm {

/// Returns the caller that collectives of this thread are started for.
const Caller& current_caller();

/// Names the caller of the collectives that this thread starts in a scope. Threads: any thread.
class CallerScope {
 public:
  explicit CallerScope(const Caller& caller);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

 private:
  Caller previous_;
};

} // namespace tessera::comm
