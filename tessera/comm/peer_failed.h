#pragma once

#include "tessera/base/error.h"

namespace tessera::comm {

/// User code failed on another rank of a group, which therefore left a
/// collective that this rank is in. The text is that rank's.
class PeerFailed : public UserError {
 public:
  using UserError::UserError;
};

} // namespace tessera::comm
