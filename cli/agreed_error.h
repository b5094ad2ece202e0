#pragma once

#include "tessera/base/error.h"

namespace tessera::cli {

/// A reason to end a run that every rank has found by the same computation. One rank prints it, and
/// all end with status 1.
class AgreedError : public Error {
 public:
  using Error::Error;
};

} // namespace tessera::cli
