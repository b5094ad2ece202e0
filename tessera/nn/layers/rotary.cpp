#include "tessera/nn/layers/rotary.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

namespace tessera::nn {

at::Tensor turned_by_position(const Rotary& rotary, const at::Tensor& x) {
  const std::int64_t half = rotary.width / 2;
  const std::int64_t positions = x.size(1);
  const auto wide = at::toOpMathType(x.scalar_type());
  const auto exact = x.options().dtype(at::kDouble);
  const at::Tensor frequencies = at::exp(
      at::arange(half, exact) * (-2 * std::log(rotary.base) / static_cast<double>(rotary.width)));
  const at::Tensor angles = at::arange(positions, exact).unsqueeze(1) * frequencies;
  const at::Tensor cosines = at::cos(angles).to(wide).view({positions, 1, half});
  const at::Tensor sines = at::sin(angles).to(wide).view({positions, 1, half});
  const at::Tensor pairs = x.narrow(-1, 0, rotary.width).to(wide);
  const at::Tensor first =
      rotary.interleaved ? pairs.slice(-1, 0, rotary.width, 2) : pairs.narrow(-1, 0, half);
  const at::Tensor second =
      rotary.interleaved ? pairs.slice(-1, 1, rotary.width, 2) : pairs.narrow(-1, half, half);
  const at::Tensor new_first = first * cosines - second * sines;
  const at::Tensor new_second = second * cosines + first * sines;
  const at::Tensor turned = (rotary.interleaved ? at::stack({new_first, new_second}, -1).flatten(-2)
                                                : at::cat({new_first, new_second}, -1))
                                .to(x.scalar_type());
  const std::int64_t rest = x.size(-1) - rotary.width;
  return rest == 0 ? turned : at::cat({turned, x.narrow(-1, rotary.width, rest)}, -1);
}

} // namespace tessera::nn
