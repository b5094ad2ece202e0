#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace tessera::equivalence {

/// Numbers that are the same for a seed on every rank and every machine (the
/// standard's distributions are not).
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream)
      : engine_(seed * 0x9e3779b97f4a7c15ULL + stream * 0xbf58476d1ce4e5b9ULL) {
    engine_.discard(4);
  }

  /// From `low` to `high`, both included.
  int integer(int low, int high) {
    const auto span = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<int>(engine_() % span);
  }
  bool chance(int percent) {
    return integer(1, 100) <= percent;
  }
  template <typename T>
  const T& pick(const std::vector<T>& list) {
    return list.at(static_cast<std::size_t>(integer(0, static_cast<int>(list.size()) - 1)));
  }

 private:
  std::mt19937_64 engine_;
};

} // namespace tessera::equivalence
