#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// How positions turn the channels of queries and keys.
struct Rotary {
  std::int64_t width = 0; // channels that turn, from the first on; even
  double base = 10000;
  /// Channels 2i and 2i + 1 are a pair; false: i and i + width / 2.
  bool interleaved = false;
};

/// x with pair i at position p turned by p * base^(-2 i / width), so that the
/// product of a query and a key depends on their distance. Positions count from
/// 0. Angles in f64, sums in f32 for narrower types.
/// Shapes: x_BSnd -> y_BSnd. Not collective. Threads: any.
/// Source: Su et al. 2021, section 3.4.2; pairs as in Black et al. 2022 (halves)
/// and Wang and Komatsuzaki 2021 (interleaved).
at::Tensor turned_by_position(const Rotary& rotary, const at::Tensor& x);

} // namespace tessera::nn
