#pragma once

#include <functional>
#include <string>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

/// What the Error says that `run` throws.
inline std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

} // namespace tessera::checkpoint
