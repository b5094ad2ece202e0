#include "tessera/nn/summa/boundary.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <c10/util/hash.h>

#include "tessera/base/error.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/summa/gather.h"
#include "tessera/nn/summa/node.h"

namespace tessera::nn::two_d {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Crossing {
  MeshPtr mesh;
  Blocks hidden;
  bool prescaled;
  bool enters;

  Crossing back() const {
    return {mesh, hidden, prescaled, !enters};
  }
};

/// Rows of the samples of one column's rank.
at::Tensor samples_at(const Mesh& mesh, const at::Tensor& x, int column) {
  const std::int64_t each = x.size(0) / mesh.side();
  return x.narrow(0, column * each, each);
}

/// Product of all sizes but the last, which may be 0.
std::int64_t positions_of(const at::Tensor& x) {
  return c10::multiply_integers(x.sizes().slice(0, x.dim() - 1));
}

at::Tensor hidden_at(const Crossing& c, const at::Tensor& x, int column) {
  return x.narrow(-1, c.hidden.start(column), c.hidden.size(column));
}

at::Tensor enter_now(const Crossing& c, const at::Tensor& x) {
  const Mesh& mesh = *c.mesh;
  if (c.prescaled) {
    const std::int64_t each = x.size(0) / mesh.side();
    return hidden_at(c, x.narrow(0, mesh.row() * each, each), mesh.column()).contiguous();
  }
  std::vector<at::Tensor> to_each;
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = c.hidden.size(mesh.column());
  for (int column = 0; column < mesh.side(); ++column) {
    to_each.push_back(hidden_at(c, x, column));
  }
  return at::cat(exchange_along(
      mesh,
      Along::kRow,
      to_each,
      std::vector<std::vector<std::int64_t>>(to_each.size(), sizes),
      positions_of(x) * c.hidden.largest()));
}

at::Tensor leave_now(const Crossing& c, const at::Tensor& x) {
  const Mesh& mesh = *c.mesh;
  if (c.prescaled) {
    const at::Tensor whole = join_along(mesh, Along::kRow, x, x.dim() - 1, c.hidden);
    return join_along(
        mesh, Along::kColumn, whole, 0, Blocks(x.size(0) * mesh.side(), mesh.side(), x.size(0)));
  }
  std::vector<at::Tensor> to_each;
  std::vector<std::vector<std::int64_t>> sizes;
  for (int column = 0; column < mesh.side(); ++column) {
    to_each.push_back(samples_at(mesh, x, column));
    sizes.push_back(to_each.back().sizes().vec());
    sizes.back().back() = c.hidden.size(column);
  }
  return at::cat(
      exchange_along(
          mesh, Along::kRow, to_each, sizes, positions_of(x) / mesh.side() * c.hidden.largest()),
      -1);
}

class Cross : public torch::autograd::Function<Cross> {
 public:
  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& x, const KeptPtr<Crossing>& crossing) {
    save(ctx, crossing);
    return crossing->value.enters ? enter_now(crossing->value, x) : leave_now(crossing->value, x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const Crossing& c = saved<Crossing>(ctx)->value;
    return {Cross::apply(gradients[0].contiguous(), keep(c.back())), at::Tensor()};
  }
};

class OwnSamples : public torch::autograd::Function<OwnSamples> {
 public:
  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& of_row, const KeptPtr<Crossing>& crossing) {
    save(ctx, crossing);
    const Crossing& c = crossing->value;
    if (c.prescaled) {
      return join_along(
          *c.mesh,
          Along::kColumn,
          of_row,
          0,
          Blocks(of_row.size(0) * c.mesh->side(), c.mesh->side(), of_row.size(0)));
    }
    return samples_at(*c.mesh, of_row, c.mesh->column()).contiguous();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("the samples of a row");
    const Crossing& c = saved<Crossing>(ctx)->value;
    const at::Tensor& gradient = gradients[0];
    if (c.prescaled) {
      const std::int64_t each = gradient.size(0) / c.mesh->side();
      return {gradient.narrow(0, c.mesh->row() * each, each).contiguous(), at::Tensor()};
    }
    return {gather_along(*c.mesh, Along::kRow, gradient).flatten(0, 1), at::Tensor()};
  }
};

} // namespace

void Boundary::check_batch(const at::Tensor& x) const {
  if (prescaled_ && x.size(0) % mesh_->side() != 0) {
    throw ShapeError(tessera::str(
        "a batch of ",
        x.size(0),
        " samples that all ranks bring (prescaled_batch) on a mesh of ",
        mesh_->side(),
        " x ",
        mesh_->side(),
        "; expected a multiple of ",
        mesh_->side()));
  }
}

void Boundary::note_entered(at::IntArrayRef leading) const {
  bool same = true;
  if (!prescaled_ && mesh_->side() > 1 && mesh_->reads_all() && !tensor_parallel().shapes_only) {
    const auto mine =
        static_cast<std::int64_t>(c10::get_hash(std::vector<std::int64_t>(leading.vec())));
    const at::Tensor all = gather_along(*mesh_, Along::kColumn, at::full({1}, mine, at::kLong));
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
  at::Tensor inside = Cross::apply(x, keep(Crossing{mesh_, hidden, prescaled_, true}));
  note_entered(inside.sizes().slice(0, inside.dim() - 1));
  return inside;
}

at::Tensor Boundary::leave(const at::Tensor& x, const Blocks& hidden) const {
  return Cross::apply(x, keep(Crossing{mesh_, hidden, prescaled_, false}));
}

at::Tensor Boundary::samples_of_row(const at::Tensor& own) const {
  if (!own.defined()) {
    return own;
  }
  check_batch(own);
  const std::int64_t each = own.size(0) / mesh_->side();
  const at::Tensor of_row = prescaled_
                                ? own.narrow(0, mesh_->row() * each, each)
                                : gather_along(*mesh_, Along::kRow, own.detach()).flatten(0, 1);
  note_entered(of_row.sizes());
  return of_row;
}

at::Tensor Boundary::own_samples(const at::Tensor& of_row) const {
  return OwnSamples::apply(
      of_row, keep(Crossing{mesh_, Blocks(mesh_->side(), mesh_->side()), prescaled_, false}));
}

} // namespace tessera::nn::two_d
