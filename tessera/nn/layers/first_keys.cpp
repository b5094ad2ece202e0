#include "tessera/nn/layers/first_keys.h"

#include <limits>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::nn {

at::Tensor first_keys(const at::Tensor& document_begins) {
  if (!document_begins.defined()) {
    return {};
  }
  if (document_begins.dim() != 2 || document_begins.scalar_type() != at::kLong) {
    throw ShapeError(tessera::str(
        "document begins are ",
        document_begins.sizes(),
        " of type ",
        document_begins.scalar_type(),
        "; expected [batch, sequence] of int64: for each token the place in its sequence where its "
        "document begins"));
  }
  return document_begins.view({document_begins.size(0), 1, document_begins.size(1), 1});
}

bool is_first_keys(const at::Tensor& mask) {
  return mask.defined() && mask.scalar_type() == at::kLong && mask.dim() == 4 &&
         mask.size(1) == 1 && mask.size(3) == 1;
}

void hide_before_first_keys(const at::Tensor& mask, const ScoreBlock& block, at::Tensor& scores) {
  const at::Tensor first = mask.narrow(2, block.query, block.queries);
  const at::Tensor keys = at::arange(block.key, block.key + block.keys, mask.options());
  const at::Tensor before = keys.lt(first);
  // Added, not filled in: a sum keeps nothing for its backward.
  scores.add_(at::zeros(before.sizes(), scores.options())
                  .masked_fill_(before, -std::numeric_limits<double>::infinity()));
}

std::int64_t lowest_first_key(const at::Tensor& mask, std::int64_t query, std::int64_t queries) {
  return mask.is_cpu() && mask.numel() > 0
             ? mask.narrow(2, query, queries).min().item<std::int64_t>()
             : 0;
}

} // namespace tessera::nn
