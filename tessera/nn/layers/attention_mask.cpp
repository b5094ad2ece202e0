#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/attention_layer.h"
#include "tessera/nn/parallel/primitives.h"
#include "tessera/nn/summa/boundary.h"

namespace tessera::nn {

namespace {

/// [b, H, S, T] from fewer dimensions.
at::Tensor four_dimensions(at::Tensor mask) {
  if (mask.dim() > 4) {
    throw ShapeError(tessera::str(
        "attention mask has sizes ",
        mask.sizes(),
        "; expected up to four dimensions that broadcast to [batch, heads, "
        "queries, keys]"));
  }
  while (mask.dim() < 4) {
    mask = mask.unsqueeze(0);
  }
  return mask;
}

bool all_equal_to(const Lengths& lengths, std::int64_t value) {
  for (const std::int64_t length : lengths) {
    if (length != value) {
      return false;
    }
  }
  return true;
}

} // namespace

SampleSizes sample_sizes(
    const TensorParallel& parallel,
    const at::Tensor& hidden,
    const at::Tensor& mask,
    const at::Tensor& cross_mask) {
  const auto mask_samples = [](const at::Tensor& t) -> std::int64_t {
    return t.defined() && t.dim() == 4 ? t.size(0) : 1;
  };
  SampleSizes sizes;
  if (parallel.prescaled_batch || inside_placement(parallel) == Placement::kOnMesh) {
    sizes.samples = samples_of_ranks(parallel, hidden.size(0));
    return sizes;
  }
  const auto numbers =
      exchange_numbers(parallel, {hidden.size(0), mask_samples(mask), mask_samples(cross_mask)});
  sizes.samples = numbers[0];
  // With one sample a rank, a mask may belong to the rank or to all of them. Treating it
  // as the rank's own is right in both cases.
  const bool one_each = all_equal_to(numbers[0], 1);
  sizes.own_masks = one_each || !all_equal_to(numbers[1], 1);
  sizes.own_cross_masks = one_each || !all_equal_to(numbers[2], 1);
  return sizes;
}

at::Tensor mask_for_heads(
    const TensorParallel& parallel,
    const at::Tensor& mask,
    const HeadGroups& groups,
    bool own,
    const Lengths& samples) {
  if (!mask.defined() || parallel.size() == 1) {
    return mask.defined() ? four_dimensions(mask) : mask;
  }
  const std::int64_t heads = groups.heads();
  at::Tensor all = four_dimensions(mask);
  if (inside_placement(parallel) == Placement::kOnMesh) {
    return summa::Boundary(parallel.mesh, parallel.prescaled_batch)
        .mask_for_heads(
            all, samples[parallel.rank()], Blocks(heads, parallel.mesh->columns(), groups.queries));
  }
  const bool by_head = heads > 1 && all.size(1) == heads;
  if (own) {
    const std::int64_t count = samples[parallel.rank()];
    all = all.expand({count, all.size(1), all.size(2), all.size(3)});
    if (by_head) {
      return scatter_and_merge_for_tp(
          parallel, all, 1, groups.lengths(parallel.size()), 0, samples);
    }
    return fused_allgather_for_tp(parallel, all, 0, samples);
  }
  if (parallel.prescaled_batch && all.requires_grad()) {
    all = bwd_allreduce_for_tp(parallel, all);
  }
  if (by_head) {
    const Range range = slice_range(groups.lengths(parallel.size()), parallel.rank());
    all = all.narrow(1, range.start, range.size());
  }
  return all;
}

} // namespace tessera::nn
