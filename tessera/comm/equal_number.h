#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::comm {

/// A number that ranks compare in an all-reduce of bytes, ReduceOp::kMax. Each byte stands beside
/// what it lacks of 255: the largest of all ranks add up to 255 where the number is the same on
/// all.
struct EqualNumber {
  static constexpr std::size_t kBytes = 2 * sizeof(std::uint64_t);

  /// Writes `kBytes` bytes.
  static void say(std::uint8_t* at, std::uint64_t number) {
    for (std::size_t i = 0; i < sizeof number; ++i) {
      at[2 * i] = static_cast<std::uint8_t>(number >> (8 * i));
      at[2 * i + 1] = static_cast<std::uint8_t>(255 - at[2 * i]);
    }
  }
  /// Returns, after the all-reduce, whether ranks said different numbers.
  static bool differs(const std::uint8_t* at) {
    for (std::size_t i = 0; i < sizeof(std::uint64_t); ++i) {
      if (at[2 * i] + at[2 * i + 1] != 255) {
        return true;
      }
    }
    return false;
  }
};

} // namespace tessera::comm
