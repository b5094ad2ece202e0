#include "tessera/nn/summa/add_up.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/comm/reduce_kernels.h"
#include "tessera/nn/summa/window_blocks.h"

namespace tessera::nn::two_d {

void add_up(const std::vector<at::Tensor>& parts, const at::Tensor& sum) {
  const auto contiguous = [](const at::Tensor& tensor) { return tensor.is_contiguous(); };
  if (sum.is_contiguous() && std::all_of(parts.begin(), parts.end(), contiguous)) {
    std::vector<const void*> sources;
    for (const at::Tensor& part : parts) {
      sources.push_back(part.data_ptr());
    }
    comm::reduce(
        sum_type(sum),
        comm::ReduceOp::kSum,
        sum.data_ptr(),
        sources.data(),
        static_cast<int>(sources.size()),
        sum.numel());
    return;
  }
  const auto is_sum = [&](const at::Tensor& part) { return part.is_same(sum); };
  bool begun = std::any_of(parts.begin(), parts.end(), is_sum);
  for (const at::Tensor& part : parts) {
    if (is_sum(part)) {
      continue;
    }
    if (begun) {
      sum.add_(part);
    } else {
      sum.copy_(part);
      begun = true;
    }
  }
}

} // namespace tessera::nn::two_d
