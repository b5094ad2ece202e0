#include "tessera/nn/summa/blocks.h"

#include "tessera/base/error.h"
#include "tessera/nn/parallel/shard.h"

namespace tessera::nn::two_d {

Blocks::Blocks(std::int64_t length, int parts, std::int64_t unit, bool may_be_empty) {
  const bool enough = may_be_empty || length / unit >= parts;
  if (unit < 1 || length % unit != 0 || !enough) {
    throw ShapeError(tessera::str(
        "a dimension of ",
        length,
        " cannot be divided among the ",
        parts,
        " rows or columns of a mesh in units of ",
        unit,
        "; expected a multiple of ",
        unit,
        " that is at least ",
        parts * unit));
  }
  for (int part = 0; part < parts; ++part) {
    starts_.push_back(even_range(length / unit, parts, part).start * unit);
  }
  starts_.push_back(length);
}

} // namespace tessera::nn::two_d
