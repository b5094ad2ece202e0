#pragma once

#include <cstddef>
#include <random>

namespace tessera::planner {

/// Returns a random index of `count` > 0 things, the same on every platform.
inline std::size_t index_below(std::mt19937_64& random, std::size_t count) {
  return static_cast<std::size_t>(random() % count);
}

} // namespace tessera::planner
