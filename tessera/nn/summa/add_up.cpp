#include "tessera/nn/summa/add_up.h"

#include <ATen/ATen.h>

#include "tessera/comm/reduce_kernels.h"
#include "tessera/nn/summa/window_blocks.h"

namespace tessera::nn::summa {

void add_up(const std::vector<at::Tensor>& parts, const at::Tensor& sum) {
  // Others are copied, so that the layout of memory does not change the order of the additions.
  std::vector<at::Tensor> flat;
  std::vector<const void*> sources;
  for (const at::Tensor& part : parts) {
    flat.push_back(part.contiguous());
    sources.push_back(flat.back().data_ptr());
  }
  const at::Tensor total =
      sum.is_contiguous() ? sum : at::empty_like(sum, at::MemoryFormat::Contiguous);
  comm::reduce(
      sum_type(sum),
      comm::ReduceOp::kSum,
      total.data_ptr(),
      sources.data(),
      static_cast<int>(sources.size()),
      sum.numel());
  if (!total.is_same(sum)) {
    sum.copy_(total);
  }
}

} // namespace tessera::nn::summa
