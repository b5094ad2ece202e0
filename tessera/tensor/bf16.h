#pragma once

#include <cstdint>
#include <cstring>

#include <c10/util/BFloat16.h>

namespace tessera {

/// Returns the nearest bf16, and where two are, the even one, as c10::BFloat16 does; without a
/// branch, so that a compiler takes several at a time.
inline c10::BFloat16 rounded_to_bf16(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>(is_nan ? 0x7FC0U : rounded), c10::BFloat16::from_bits()};
}

} // namespace tessera
