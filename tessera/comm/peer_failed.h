#pragma once

#include "tessera/base/error.h"

namespace tessera::comm {

/// Thrown when user code failed on another rank of the group, which therefore left a collective
/// that this rank is in. The text is that rank's.
class PeerFailed : public UserError {
 public:
  using UserError::UserError;
};

} // namespace tessera::comm
