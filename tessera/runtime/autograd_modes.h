#pragma once

#include <memory>

#include "tessera/runtime/protocol.h"

namespace tessera::runtime {

/// Writes this thread's grad mode and CPU autocast state into a request.
void capture_modes(Fields& fields);

/// Sets both modes on this thread for a scope.
class ModeScope {
 public:
  explicit ModeScope(const Fields& fields);
  ~ModeScope();
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  Fields previous_;
};

} // namespace tessera::runtime
