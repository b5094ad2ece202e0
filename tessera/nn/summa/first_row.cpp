#include "tessera/nn/summa/first_row.h"

#include <ATen/ATen.h>

#include "tessera/autograd/node_data.h"
#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/gemm.h"
#include "tessera/nn/summa/with_memory.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn::summa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AddFromFirstRow : public torch::autograd::Function<AddFromFirstRow> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      at::Tensor y,
      const at::Tensor& vector,
      const NodeDataPtr<MeshPtr>& mesh) {
    ctx->set_materialize_grads(false);
    if (!recompute::product_is_given()) { // with its bias
      y.add_(broadcast_from_first_row(*mesh->value, vector, {y.size(-1)}, y.options()));
    }
    ctx->mark_dirty({y});
    save_node_data(ctx, mesh);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("a bias on a mesh");
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const at::Tensor& gradient = gradients[0];
    at::Tensor of_vector;
    if (ctx->needs_input_grad(1)) {
      of_vector =
          reduce_to_first_row(*saved_node_data<MeshPtr>(ctx)->value, as_matrix(gradient).sum(0));
    }
    return {gradient, of_vector, at::Tensor()};
  }
};

} // namespace

at::Tensor broadcast_from_first_row(
    const Mesh& mesh,
    const at::Tensor& vector,
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const bool mine = mesh.row() == 0;
  if (mine && vector.sizes() != sizes) {
    throw ShapeError(tessera::str(
        "the first mesh row broadcasts a tensor of ",
        vector.sizes(),
        " along column ",
        mesh.column(),
        ", which expects ",
        sizes));
  }
  if (mesh.rows() == 1) {
    return vector.detach();
  }
  const at::Tensor whole =
      mine ? with_memory(vector.detach()).to(options).contiguous() : at::zeros(sizes, options);
  if (tensor_parallel().shapes_only) {
    tell_skipped("broadcast", mesh.rows(), whole);
  } else {
    mesh.column_group().broadcast(whole, mesh.in_column(0));
  }
  return whole;
}

at::Tensor reduce_to_first_row(const Mesh& mesh, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (mesh.rows() > 1 && !tensor_parallel().shapes_only) {
    mesh.column_group().reduce(tensor, mesh.in_column(0), comm::ReduceOp::kSum);
  }
  return mesh.row() == 0 ? tensor : at::Tensor();
}

at::Tensor add_from_first_row(const MeshPtr& mesh, const at::Tensor& y, const at::Tensor& vector) {
  return AddFromFirstRow::apply(y, vector, node_data(mesh));
}

at::Tensor FirstRowVectors::create(
    const Mesh& mesh,
    const ParameterCreationScope& create,
    const std::string& name,
    const Blocks& columns,
    int groups,
    const Initializer& initializer) {
  if (mesh.row() == 0) {
    vectors_.push_back(create.initialize_shard(
        name, block_of_vector(columns, mesh.column(), groups), initializer));
  } else {
    create.skip({groups * columns.length()}, initializer);
    vectors_.push_back(at::empty({0}, at::dtype(at::kFloat)).requires_grad_());
  }
  return vectors_.back();
}

void FirstRowVectors::agree(const Mesh& mesh) {
  // A tracer, which trains nothing, looks at what training does.
  const bool shapes_only = tensor_parallel().shapes_only;
  if (vectors_.empty() || mesh.rows() == 1 || (!shapes_only && !at::GradMode::is_enabled())) {
    return;
  }
  const at::Tensor trained = at::zeros({static_cast<std::int64_t>(vectors_.size())}, at::kLong);
  if (shapes_only) {
    tell_skipped("broadcast", mesh.rows(), trained, false);
    return;
  }
  auto* flags = trained.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < vectors_.size(); ++i) {
    flags[i] = static_cast<std::int64_t>(vectors_[i].requires_grad());
  }
  mesh.column_group().broadcast(trained, mesh.in_column(0));
  if (mesh.row() != 0) {
    for (std::size_t i = 0; i < vectors_.size(); ++i) {
      vectors_[i].set_requires_grad(flags[i] != 0);
    }
  }
}

} // namespace tessera::nn::summa
