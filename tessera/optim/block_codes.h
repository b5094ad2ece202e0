#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::optim {

/// The 256 values in [-1, 1] that a byte stands for: decades of [0.1, 1) down to 1e-6, each divided
/// into twice as many equal cells as the one below it, whose middles are the values; and 0 and 1.
/// Signed: 2^i cells in decade i = 0 ... 6 for each sign; else 2^(i+1), and no negative value.
/// Threads: any.
/// Source: Dettmers et al. 2022, sections 1.3 and 2.2 (dynamic quantization).
class ByteValues {
 public:
  static const ByteValues& with_sign();
  static const ByteValues& without_sign();

  float value(std::uint8_t code) const {
    return values_[code];
  }
  /// Returns the code of the nearest value; of two the lower one. Without sign what is above 0
  /// never becomes 0: an average of squares is a divisor. `x` in [-1, 1].
  std::uint8_t nearest(float x) const;
  /// Returns the code of 0.
  std::uint8_t zero() const {
    return zero_;
  }

 private:
  explicit ByteValues(bool with_sign);

  std::array<float, 256> values_{}; // ascending
  std::array<float, 256> middle_{}; // between a value and the next; of the last: infinity
  std::array<std::uint8_t, 65536> first_{}; // by the first 16 bits of x: no code below it fits
  std::uint8_t zero_ = 0;
  bool with_sign_;
};

/// Elements that share a scale.
constexpr std::int64_t kBlock = 256;

/// Writes up to kBlock numbers as codes, and returns the scale: the number that is furthest from 0,
/// with its sign, so that it and with it the scale are the same when `decode`'s numbers are encoded
/// again. Then all codes are. A block whose numbers are below 1e-30 becomes zeros; one that is
/// not finite gets a scale that is not, and decodes to NaN.
float encode_block(
    const ByteValues& values,
    const float* numbers,
    std::int64_t count,
    std::uint8_t* codes);
void decode_block(
    const ByteValues& values,
    const std::uint8_t* codes,
    float scale,
    std::int64_t count,
    float* numbers);

/// A tensor in bytes: blocks of kBlock elements in row-major order, the last one may be shorter.
struct BlockCodes {
  at::Tensor codes; // u8, the tensor's shape
  at::Tensor scales; // f32 [blocks]

  /// Zeros of this shape.
  static BlockCodes zeros(at::IntArrayRef sizes, const ByteValues& values);
  /// `numbers`: f32 on the processor.
  static BlockCodes encode(const at::Tensor& numbers, const ByteValues& values);
  /// f32.
  at::Tensor decode(const ByteValues& values) const;
};

} // namespace tessera::optim
