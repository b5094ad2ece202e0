#pragma once

#include <cstdint>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/collective.h"

namespace tessera::comm {

/// User code failed on another rank of a group, which therefore left a
/// collective that this rank is in. The text is that rank's.
class PeerFailed : public UserError {
 public:
  using UserError::UserError;
};

/// An engine's part of what recoverable.h promises.
class RecoverableEngine : public Engine {
 public:
  /// `started`: how many operations this rank had started by then.
  virtual void abandon(std::uint32_t started, const std::string& why) = 0;
  /// Returns how many operations count as started from now on.
  virtual std::uint32_t recover() = 0;
};

} // namespace tessera::comm
