#include "tessera/nn/summa/boundary.h"

#include <ATen/ATen.h>
#include <c10/util/hash.h>

#include "tessera/base/error.h"
#include "tessera/nn/parallel/primitives.h"

namespace tessera::nn::two_d {

namespace {

/// Returns the samples of each rank of a mesh row, equally many.
Lengths of_ranks(const Mesh& mesh, std::int64_t each) {
  return Lengths(static_cast<std::size_t>(mesh.columns()), each);
}

/// Returns the samples of each row of a mesh, equally many.
Lengths of_rows(const Mesh& mesh, std::int64_t each) {
  return Lengths(static_cast<std::size_t>(mesh.rows()), each);
}

} // namespace

void Boundary::check_batch(const at::Tensor& x) const {
  if (prescaled_ && x.size(0) % mesh_->rows() != 0) {
    throw ShapeError(tessera::str(
        "a microbatch of ",
        x.size(0),
        " samples that all ranks bring (prescaled_batch) on a mesh of ",
        mesh_->shape_text(),
        ", whose rows take as many each; give every microbatch a multiple of ",
        mesh_->rows(),
        " samples, for instance by another number of microbatches"));
  }
}

void Boundary::note_entered(at::IntArrayRef leading) const {
  bool same = true;
  if (!prescaled_ && mesh_->rows() > 1 && mesh_->reads_all() && !tensor_parallel().shapes_only) {
    const auto mine =
        static_cast<std::int64_t>(c10::get_hash(std::vector<std::int64_t>(leading.vec())));
    const at::Tensor all = gather_blocks(mesh_->along_column(), at::full({1}, mine, at::kLong));
    same = all.eq(mine).all().item<bool>();
  }
  mesh_->note_entered(leading, same);
}

at::Tensor Boundary::enter(const at::Tensor& x, const Blocks& hidden) const {
  check_batch(x);
  if (x.size(-1) != hidden.length()) {
    throw ShapeError(tessera::str(
        "activations of sizes ",
        x.sizes(),
        " come to a mesh that expects ",
        hidden.length(),
        " in the last dimension"));
  }
  at::Tensor inside;
  if (prescaled_) {
    const Lengths samples = of_rows(*mesh_, x.size(0) / mesh_->rows());
    inside = slice_for_tp(
        mesh_->along_row(),
        slice_for_tp(mesh_->along_column(), x, 0, samples),
        -1,
        hidden.lengths());
  } else {
    inside = scatter_and_merge_for_tp(
        mesh_->along_row(), x, -1, hidden.lengths(), 0, of_ranks(*mesh_, x.size(0)));
  }
  note_entered(inside.sizes().slice(0, inside.dim() - 1));
  return inside;
}

at::Tensor Boundary::leave(const at::Tensor& x, const Blocks& hidden) const {
  if (prescaled_) {
    return join_slices_for_tp(
        mesh_->along_column(),
        join_slices_for_tp(mesh_->along_row(), x, -1, hidden.lengths()),
        0,
        of_rows(*mesh_, x.size(0)));
  }
  const Lengths samples = of_ranks(*mesh_, x.size(0) / mesh_->columns());
  return scatter_and_merge_for_tp(mesh_->along_row(), x, 0, samples, -1, hidden.lengths());
}

at::Tensor Boundary::samples_of_row(const at::Tensor& own) const {
  if (!own.defined()) {
    return own;
  }
  check_batch(own);
  const at::Tensor of_row = row_samples(own.detach());
  note_entered(of_row.sizes());
  return of_row;
}

at::Tensor Boundary::row_samples(const at::Tensor& own) const {
  if (prescaled_) {
    return slice_for_tp(
        mesh_->along_column(), own, 0, of_rows(*mesh_, own.size(0) / mesh_->rows()));
  }
  return fused_allgather_for_tp(mesh_->along_row(), own, 0, of_ranks(*mesh_, own.size(0)));
}

at::Tensor Boundary::own_samples(const at::Tensor& of_row) const {
  if (prescaled_) {
    return join_slices_for_tp(mesh_->along_column(), of_row, 0, of_rows(*mesh_, of_row.size(0)));
  }
  return slice_for_tp(
      mesh_->along_row(), of_row, 0, of_ranks(*mesh_, of_row.size(0) / mesh_->columns()));
}

at::Tensor
Boundary::mask_for_heads(const at::Tensor& mask, std::int64_t samples, const Blocks& heads) const {
  const bool by_head = heads.length() > 1 && mask.size(1) == heads.length();
  const bool by_sample = mask.size(0) > 1 || samples == 1;
  at::Tensor here = by_sample ? mask.expand({samples, -1, -1, -1}) : mask;
  if (prescaled_) {
    // Each rank's samples and heads contribute a part of the mask's gradient.
    here = bwd_allreduce_for_tp(Ranks(mesh_->group(), {}, tensor_parallel().shapes_only), here);
    if (by_sample) {
      check_batch(here);
      const std::int64_t each = samples / mesh_->rows();
      here = here.narrow(0, mesh_->row() * each, each);
    }
  } else if (by_sample && by_head) {
    return scatter_and_merge_for_tp(
        mesh_->along_row(), here, 1, heads.lengths(), 0, of_ranks(*mesh_, samples));
  } else if (by_sample) {
    here = row_samples(here);
  }
  return by_head ? here.narrow(1, heads.start(mesh_->column()), heads.size(mesh_->column())) : here;
}

} // namespace tessera::nn::two_d
