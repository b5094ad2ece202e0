#include "tessera/optim/adamw_8bit_state.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

namespace tessera::optim {

namespace {

constexpr std::int64_t kLeastInBytes = 4096; // elements

} // namespace

Average::Average(at::IntArrayRef sizes, const ByteValues& values) : values_(&values) {
  if (c10::multiply_integers(sizes) < kLeastInBytes) {
    exact_ = at::zeros(sizes, at::kFloat);
  } else {
    codes_ = BlockCodes::zeros(sizes, values);
  }
}

Average::Average(const at::Tensor& numbers, const ByteValues& values) : values_(&values) {
  if (numbers.numel() < kLeastInBytes) {
    exact_ = numbers.contiguous();
  } else {
    codes_ = BlockCodes::encode(numbers, values);
  }
}

void Average::read(std::int64_t block, std::int64_t count, float* into) const {
  const std::int64_t start = block * kBlock;
  if (exact_.defined()) {
    std::copy_n(exact_.data_ptr<float>() + start, count, into);
  } else {
    decode_block(
        *values_,
        codes_.codes.data_ptr<std::uint8_t>() + start,
        codes_.scales.data_ptr<float>()[block],
        count,
        into);
  }
}

void Average::write(std::int64_t block, std::int64_t count, const float* from) {
  const std::int64_t start = block * kBlock;
  if (exact_.defined()) {
    std::copy_n(from, count, exact_.data_ptr<float>() + start);
  } else {
    codes_.scales.data_ptr<float>()[block] =
        encode_block(*values_, from, count, codes_.codes.data_ptr<std::uint8_t>() + start);
  }
}

at::Tensor Average::numbers() const {
  return exact_.defined() ? exact_ : codes_.decode(*values_);
}

std::size_t Average::bytes() const {
  return exact_.defined() ? exact_.nbytes() : codes_.codes.nbytes() + codes_.scales.nbytes();
}

double adamw_8bit_bytes(double elements) {
  constexpr double kNumber = sizeof(float);
  return elements < kLeastInBytes
             ? 2 * kNumber * elements
             : 2 * (elements + kNumber * std::ceil(elements / static_cast<double>(kBlock)));
}

} // namespace tessera::optim
