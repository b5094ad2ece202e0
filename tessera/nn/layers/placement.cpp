#include "tessera/nn/layers/placement.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/parallel/primitives.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/exchange.h"

namespace tessera::nn {

namespace {

summa::Boundary boundary_of(const TensorParallel& parallel) {
  return {summa::mesh_of(parallel), parallel.prescaled_batch};
}

} // namespace

Placement outside_placement(const TensorParallel& parallel) {
  return parallel.prescaled_batch ? Placement::kReplicated : Placement::kOwnSamples;
}

Placement inside_placement(const TensorParallel& parallel) {
  switch (parallel.distribution) {
    case Distribution::kMemory:
      return Placement::kSharded;
    case Distribution::kTwoD:
      return Placement::kOnMesh;
    case Distribution::kSpeed:
      break;
  }
  return outside_placement(parallel);
}

Placement divided_placement(const TensorParallel& parallel) {
  return inside_placement(parallel) == Placement::kOnMesh ? Placement::kOnMesh
                                                          : Placement::kSharded;
}

at::Tensor enter(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples) {
  switch (inside_placement(parallel)) {
    case Placement::kOnMesh:
      return boundary_of(parallel).enter(
          x, mesh_blocks(parallel, x.size(-1), "the channels of an activation").over_columns);
    case Placement::kSharded:
      return parallel.prescaled_batch ? shard_channels(parallel, x)
                                      : samples_to_shard(parallel, x, samples);
    default:
      return x;
  }
}

at::Tensor leave(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples) {
  switch (inside_placement(parallel)) {
    case Placement::kOnMesh:
      return boundary_of(parallel).leave(
          x, mesh_blocks(parallel, channels, "the channels of an activation").over_columns);
    case Placement::kSharded:
      return parallel.prescaled_batch ? gather_channels(parallel, x, channels)
                                      : shard_to_samples(parallel, x, channels, samples);
    default:
      return x;
  }
}

at::Tensor
samples_to_shard(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples) {
  return scatter_and_merge_for_tp(
      parallel, x, -1, even_lengths(x.size(-1), parallel.size()), 0, samples);
}

at::Tensor shard_to_samples(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples) {
  return scatter_and_merge_for_tp(
      parallel, x, 0, samples, -1, even_lengths(channels, parallel.size()));
}

at::Tensor shard_channels(const TensorParallel& parallel, const at::Tensor& x) {
  return slice_for_tp(parallel, x, -1, even_lengths(x.size(-1), parallel.size()));
}

at::Tensor
gather_channels(const TensorParallel& parallel, const at::Tensor& x, std::int64_t channels) {
  return join_slices_for_tp(parallel, x, -1, even_lengths(channels, parallel.size()));
}

at::Tensor sum_of_partials(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement to,
    const Lengths& samples) {
  if (to == Placement::kReplicated) {
    return fwd_allreduce_for_tp(parallel, x);
  }
  return to == Placement::kOwnSamples
             ? reduce_scatter_for_tp(parallel, x, 0, samples)
             : reduce_scatter_for_tp(parallel, x, -1, even_lengths(x.size(-1), parallel.size()));
}

Lengths samples_of_ranks(const TensorParallel& parallel, std::int64_t own) {
  const bool alike = parallel.prescaled_batch || inside_placement(parallel) == Placement::kOnMesh;
  return alike ? Lengths(parallel.size(), own) : exchange_length(parallel, own);
}

ParameterCreation creation_for(const TensorParallel& parallel, ParameterCreation how) {
  if (inside_placement(parallel) == Placement::kOnMesh) {
    how.allocate = [mesh = summa::mesh_of(parallel)](
                       at::IntArrayRef sizes, const at::TensorOptions& options) {
      return mesh->exchange().allocate(sizes, options);
    };
  }
  return how;
}

summa::MeshBlocks
mesh_blocks(const TensorParallel& parallel, std::int64_t length, const char* what) {
  const summa::Mesh& mesh = *summa::mesh_of(parallel);
  if (length < mesh.columns()) {
    throw ShapeError(tessera::str(
        what,
        " is ",
        length,
        ", which the ",
        mesh.columns(),
        " columns of a mesh of ",
        mesh.shape_text(),
        " divide: make it at least ",
        mesh.columns(),
        ", or write a smaller tensor_parallel_degree than ",
        parallel.size()));
  }
  return {mesh, length};
}

} // namespace tessera::nn
