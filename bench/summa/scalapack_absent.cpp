// Takes the place of scalapack.cpp where the library was not found.
#include "tessera/base/error.h"

#include "bench/summa/scalapack.h"

namespace tessera::bench {

struct Scalapack::State {};

bool Scalapack::available() {
  return false;
}

Scalapack::Scalapack(int, int, std::int64_t) {}
Scalapack::~Scalapack() = default;

void Scalapack::multiply() {
  throw ConfigError(
      "this program was built without ScaLAPACK; install "
      "libscalapack-openmpi-dev and build again");
}

} // namespace tessera::bench
