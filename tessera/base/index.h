#pragma once

#include <cstddef>

namespace tessera {

/// An index that is counted in int (layers, stages, devices) as containers take it. Not negative.
constexpr std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

} // namespace tessera
