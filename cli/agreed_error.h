#pragma once

#include "tessera/base/error.h"

namespace tessera::cli {

/// A run fails for a reason that every rank has found alike, so that one rank
/// prints it and all end with status 1.
class AgreedError : public Error {
 public:
  using Error::Error;
};

} // namespace tessera::cli
