#pragma once

#include <functional>
#include <string>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

/// What the CheckpointError says that `run` throws.
inline std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "no CheckpointError";
}

} // namespace tessera::checkpoint
