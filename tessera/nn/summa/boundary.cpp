#include "tessera/nn/summa/boundary.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/parallel/primitives.h"

namespace tessera::nn::summa {

namespace {

/// Returns the samples of each rank of a mesh row, equally many.
Lengths of_ranks(const Mesh& mesh, std::int64_t each) {
  return Lengths(static_cast<std::size_t>(mesh.columns()), each);
}

/// Returns the samples of each row of a mesh, equally many.
Lengths of_rows(const Mesh& mesh, std::int64_t each) {
  return Lengths(static_cast<std::size_t>(mesh.rows()), each);
}

/// What a rank brings to the mesh.
struct Brought {
  int rank; // of the world
  std::int64_t samples;
  std::int64_t each; // positions of a sample

  bool is_like(const Brought& other) const {
    return samples == other.samples && each == other.each;
  }
  std::string text() const {
    return tessera::str("rank ", rank, " brings ", samples, " samples of ", each, " positions");
  }
};

[[noreturn]] void
refuse(const Mesh& mesh, bool prescaled, const Brought& one, const Brought& other) {
  throw ShapeError(tessera::str(
      "on a mesh of ",
      mesh.shape_text(),
      " ",
      one.text(),
      ", ",
      other.text(),
      prescaled
          ? "; with prescaled_batch all ranks of a TP_GROUP bring the same samples: feed them "
            "by data_rank() of data_size()"
          : "; the ranks of a mesh row bring equally many: drop the last incomplete batch, or "
            "write \"tensor_parallel_kind\": \"1d\", which takes any number from each rank"));
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

bool Boundary::agree(at::IntArrayRef leading) const {
  // Along the row, then what each row has found: every rank knows all, and all of them throw.
  const std::int64_t each = c10::multiply_integers(leading.begin() + 1, leading.end());
  const auto of_row = exchange_numbers(mesh_->along_row(), {leading[0], each});
  std::vector<std::int64_t> found = of_row[0];
  found.insert(found.end(), of_row[1].begin(), of_row[1].end());
  const auto all = exchange_numbers(mesh_->along_column(), found); // by column, then by row
  if (tensor_parallel().shapes_only) {
    return true; // the rank is alone
  }
  const auto at = [&](int row, int column) {
    const auto k = static_cast<std::size_t>(column);
    const auto r = static_cast<std::size_t>(row);
    const int position = mesh_->layout().position_at({row, column});
    return Brought{
        mesh_->group().ranks().at(static_cast<std::size_t>(position)),
        all.at(k).at(r),
        all.at(static_cast<std::size_t>(mesh_->columns()) + k).at(r)};
  };
  bool same = true;
  for (int row = 0; row < mesh_->rows(); ++row) {
    same = same && at(row, 0).is_like(at(0, 0));
    const Brought wanted = at(prescaled_ ? 0 : row, 0);
    for (int column = 0; column < mesh_->columns(); ++column) {
      if (!at(row, column).is_like(wanted)) {
        refuse(*mesh_, prescaled_, wanted, at(row, column));
      }
    }
  }
  return same;
}

at::Tensor Boundary::enter(const at::Tensor& x, const Blocks& hidden) const {
  if (x.dim() < 2) {
    throw ShapeError(tessera::str(
        "activations of sizes ",
        x.sizes(),
        " come to a mesh, whose rows divide samples among them; give them a first dimension, of "
        "samples"));
  }
  if (x.size(-1) != hidden.length()) {
    throw ShapeError(tessera::str(
        "activations of sizes ",
        x.sizes(),
        " come to a mesh that expects ",
        hidden.length(),
        " in the last dimension"));
  }
  const bool same = agree(x.sizes().slice(0, x.dim() - 1));
  check_batch(x);
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
  mesh_->note_entered(inside.sizes().slice(0, inside.dim() - 1), same);
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
  const bool same = agree(own.sizes());
  check_batch(own);
  const at::Tensor of_row = row_samples(own.detach());
  mesh_->note_entered(of_row.sizes(), same);
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

} // namespace tessera::nn::summa
