#include "tessera/nn/summa/gather.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/skipped.h"

namespace tessera::nn::two_d {

namespace {

/// Whether `operation` on `tensor` is left out.
bool nothing_moves(const Mesh& mesh, const char* operation, const at::Tensor& tensor) {
  if (mesh.side() == 1) {
    return true;
  }
  if (tensor_parallel().shapes_only) {
    tell_skipped(operation, mesh.side(), tensor);
    return true;
  }
  return false;
}

/// Rank in its group of a position of the line.
int rank_at(const Mesh& mesh, Along along, int position) {
  return along == Along::kRow ? mesh.in_row(position) : mesh.in_column(position);
}

} // namespace

comm::ProcessGroup& group_along(const Mesh& mesh, Along along) {
  return along == Along::kRow ? mesh.row_group() : mesh.column_group();
}

int position_along(const Mesh& mesh, Along along) {
  return along == Along::kRow ? mesh.column() : mesh.row();
}

void sum_along(const Mesh& mesh, Along along, const at::Tensor& tensor) {
  if (!nothing_moves(mesh, "all_reduce", tensor)) {
    group_along(mesh, along).all_reduce(tensor, comm::ReduceOp::kSum);
  }
}

void max_along(const Mesh& mesh, Along along, const at::Tensor& tensor) {
  if (!nothing_moves(mesh, "all_reduce", tensor)) {
    group_along(mesh, along).all_reduce(tensor, comm::ReduceOp::kMax);
  }
}

at::Tensor gather_along(const Mesh& mesh, Along along, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), mesh.side());
  if (nothing_moves(mesh, "all_gather", tensor)) {
    return tensor.unsqueeze(0).expand(sizes).contiguous();
  }
  const at::Tensor by_rank = at::empty(sizes, tensor.options());
  group_along(mesh, along).all_gather(by_rank, tensor.contiguous());
  std::vector<at::Tensor> ordered;
  for (int position = 0; position < mesh.side(); ++position) {
    ordered.push_back(by_rank[rank_at(mesh, along, position)]);
  }
  return at::stack(ordered);
}

at::Tensor join_along(
    const Mesh& mesh,
    Along along,
    const at::Tensor& block,
    std::int64_t dim,
    const Blocks& blocks) {
  const at::NoGradGuard no_grad;
  // All-gather takes equal parts: the shorter blocks travel padded.
  std::vector<std::int64_t> sizes = block.sizes().vec();
  const std::int64_t own = sizes[static_cast<std::size_t>(dim)];
  sizes[static_cast<std::size_t>(dim)] = blocks.largest();
  at::Tensor padded = block;
  if (own != blocks.largest()) {
    padded = at::zeros(sizes, block.options());
    padded.narrow(dim, 0, own).copy_(block);
  }
  const at::Tensor all = gather_along(mesh, along, padded);
  std::vector<at::Tensor> parts;
  for (int position = 0; position < mesh.side(); ++position) {
    parts.push_back(all[position].narrow(dim, 0, blocks.size(position)));
  }
  return at::cat(parts, dim);
}

std::vector<at::Tensor> exchange_along(
    const Mesh& mesh,
    Along along,
    const std::vector<at::Tensor>& to_each,
    const std::vector<std::vector<std::int64_t>>& sizes,
    std::int64_t longest) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> came;
  const bool shapes_only = mesh.side() > 1 && tensor_parallel().shapes_only;
  if (shapes_only) {
    SkippedWork work;
    work.operation = "all_to_all";
    work.ranks = mesh.side();
    work.bytes =
        static_cast<double>(longest * mesh.side()) * static_cast<double>(to_each[0].element_size());
    tell_skipped(work);
  }
  if (mesh.side() == 1 || shapes_only) {
    for (int i = 0; i < mesh.side(); ++i) {
      came.push_back(
          mesh.side() == 1 ? to_each[0]
                           : at::zeros(sizes[static_cast<std::size_t>(i)], to_each[0].options()));
    }
    return came;
  }
  // Slices of all_to_all are equal on all ranks: everybody takes the longest.
  const at::Tensor out = at::empty({mesh.side(), longest}, to_each[0].options());
  const at::Tensor in = at::empty_like(out);
  for (int i = 0; i < mesh.side(); ++i) {
    const at::Tensor& part = to_each[static_cast<std::size_t>(i)];
    out[rank_at(mesh, along, i)].narrow(0, 0, part.numel()).view(part.sizes()).copy_(part);
  }
  group_along(mesh, along).all_to_all(in, out);
  for (int i = 0; i < mesh.side(); ++i) {
    const auto& shape = sizes[static_cast<std::size_t>(i)];
    came.push_back(
        in[rank_at(mesh, along, i)].narrow(0, 0, c10::multiply_integers(shape)).view(shape));
  }
  return came;
}

} // namespace tessera::nn::two_d
