#include "tessera/optim/block_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>

namespace tessera::optim {

namespace {

constexpr int kDecades = 7;
constexpr float kLeastScale = 1e-30F; // times the smallest value it is a normal number still

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + kBlock - 1) / kBlock;
}

} // namespace

ByteValues::ByteValues(bool with_sign) : with_sign_(with_sign) {
  std::vector<double> all{0, 1};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int cells = 1 << (with_sign ? decade : decade + 1);
    const double largest = std::pow(10.0, decade - (kDecades - 1));
    for (int cell = 0; cell < cells; ++cell) {
      const double middle = largest * (0.1 + 0.9 * (cell + 0.5) / cells);
      all.push_back(middle);
      if (with_sign) {
        all.push_back(-middle);
      }
    }
  }
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < values_.size(); ++i) {
    values_[i] = static_cast<float>(all[i]);
  }
  for (std::size_t i = 0; i + 1 < values_.size(); ++i) {
    middle_[i] = 0.5F * (values_[i] + values_[i + 1]);
  }
  middle_.back() = std::numeric_limits<float>::infinity();
  zero_ =
      static_cast<std::uint8_t>(std::find(values_.begin(), values_.end(), 0.0F) - values_.begin());
  for (std::uint32_t bits = 0; bits < first_.size(); ++bits) {
    const auto a = std::bit_cast<float>(bits << 16);
    const auto b = std::bit_cast<float>((bits << 16) | 0xFFFFU);
    const float least = std::min(a, b);
    if (std::isfinite(least)) {
      first_[bits] = static_cast<std::uint8_t>(
          std::lower_bound(middle_.begin(), middle_.end(), least) - middle_.begin());
    }
  }
}

const ByteValues& ByteValues::with_sign() {
  static const ByteValues kValues(true);
  return kValues;
}

const ByteValues& ByteValues::without_sign() {
  static const ByteValues kValues(false);
  return kValues;
}

std::uint8_t ByteValues::nearest(float x) const {
  std::uint8_t code = first_[std::bit_cast<std::uint32_t>(x) >> 16];
  while (x > middle_[code]) {
    ++code;
  }
  return !with_sign_ && code == zero_ && x > 0 ? zero_ + 1 : code;
}

float encode_block(
    const ByteValues& values,
    const float* numbers,
    std::int64_t count,
    std::uint8_t* codes) {
  float scale = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    scale = std::abs(numbers[i]) > std::abs(scale) ? numbers[i] : scale;
    finite = finite && std::isfinite(numbers[i]);
  }
  if (!finite || std::abs(scale) < kLeastScale) {
    std::fill_n(codes, count, values.zero());
    return finite ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  for (std::int64_t i = 0; i < count; ++i) {
    codes[i] = values.nearest(numbers[i] / scale);
  }
  return scale;
}

void decode_block(
    const ByteValues& values,
    const std::uint8_t* codes,
    float scale,
    std::int64_t count,
    float* numbers) {
  for (std::int64_t i = 0; i < count; ++i) {
    numbers[i] = values.value(codes[i]) * scale;
  }
}

BlockCodes BlockCodes::zeros(at::IntArrayRef sizes, const ByteValues& values) {
  BlockCodes made;
  made.codes = at::full(sizes, values.zero(), at::kByte);
  made.scales = at::zeros({blocks_of(made.codes.numel())}, at::kFloat);
  return made;
}

BlockCodes BlockCodes::encode(const at::Tensor& numbers, const ByteValues& values) {
  const at::Tensor from = numbers.contiguous();
  BlockCodes made;
  made.codes = at::empty(from.sizes(), at::kByte);
  made.scales = at::empty({blocks_of(from.numel())}, at::kFloat);
  for (std::int64_t block = 0; block < made.scales.numel(); ++block) {
    const std::int64_t start = block * kBlock;
    made.scales.data_ptr<float>()[block] = encode_block(
        values,
        from.data_ptr<float>() + start,
        std::min(kBlock, from.numel() - start),
        made.codes.data_ptr<std::uint8_t>() + start);
  }
  return made;
}

at::Tensor BlockCodes::decode(const ByteValues& values) const {
  at::Tensor numbers = at::empty(codes.sizes(), at::kFloat);
  for (std::int64_t block = 0; block < scales.numel(); ++block) {
    const std::int64_t start = block * kBlock;
    decode_block(
        values,
        codes.data_ptr<std::uint8_t>() + start,
        scales.data_ptr<float>()[block],
        std::min(kBlock, codes.numel() - start),
        numbers.data_ptr<float>() + start);
  }
  return numbers;
}

} // namespace tessera::optim
