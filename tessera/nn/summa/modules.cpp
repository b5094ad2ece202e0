#include "tessera/nn/summa/modules.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/functional.h"
#include "tessera/nn/summa/row0.h"
#include "tessera/nn/summa/summa.h"

namespace tessera::nn::two_d {

namespace {

std::vector<std::int64_t> in_order(std::int64_t rows, std::int64_t columns, bool transposed) {
  return transposed ? std::vector<std::int64_t>{columns, rows}
                    : std::vector<std::int64_t>{rows, columns};
}

Shard block_shard(
    const Mesh& mesh,
    const Blocks& rows,
    const Blocks& columns,
    int groups,
    bool transposed) {
  const std::int64_t r = rows.size(mesh.row());
  const std::int64_t c = columns.size(mesh.column());
  Shard shard;
  shard.full_sizes = in_order(rows.length(), groups * columns.length(), transposed);
  shard.local_sizes = in_order(r, groups * c, transposed);
  for (int group = 0; group < groups; ++group) {
    shard.pieces.push_back(
        {in_order(
             rows.start(mesh.row()),
             group * columns.length() + columns.start(mesh.column()),
             transposed),
         in_order(0, group * c, transposed),
         in_order(r, c, transposed)});
  }
  return shard;
}

Shard row0_shard(const Mesh& mesh, const Blocks& columns, int groups) {
  const std::int64_t c = columns.size(mesh.column());
  Shard shard;
  shard.full_sizes = {groups * columns.length()};
  shard.local_sizes = {groups * c};
  for (int group = 0; group < groups; ++group) {
    shard.pieces.push_back(
        {{group * columns.length() + columns.start(mesh.column())}, {group * c}, {c}});
  }
  return shard;
}

at::TensorOptions new_parameter() {
  return at::TensorOptions().dtype(at::typeMetaToScalarType(at::get_default_dtype()));
}

/// The whole columns of a weight, where the ranks of the mesh may choose by
/// them and by the sizes of `x` what travels; else 0.
std::int64_t columns_to_tell(const Mesh& mesh, const at::Tensor& x, std::int64_t columns) {
  return mesh.as_long_everywhere(x.sizes().slice(0, x.dim() - 1)) ? columns : 0;
}

} // namespace

MeshModule::MeshModule() {
  if (parallel().mesh == nullptr) {
    throw ConfigError(
        "a two-dimensional module was made without a mesh; make it inside a "
        "TensorParallelScope (or after set_tensor_parallel) with a mesh");
  }
}

at::Tensor MeshModule::register_block(
    const std::string& name,
    const Blocks& rows,
    const Blocks& columns,
    int groups,
    bool transposed) {
  DistributedParameter description;
  description.shard = block_shard(*mesh(), rows, columns, groups, transposed);
  // Where ranks share memory, peers read the block where it lies.
  const at::Tensor local =
      mesh()->exchange().allocate(description.shard.local_sizes, new_parameter());
  return register_distributed_parameter(name, local, description);
}

at::Tensor MeshModule::register_row0(const std::string& name, const Blocks& columns, int groups) {
  if (mesh()->row() != 0) {
    // Stands for the vector in autograd, so that all rows have the same graph.
    stand_ins_.push_back(at::empty({0}, new_parameter()).requires_grad_());
    return stand_ins_.back();
  }
  DistributedParameter description;
  description.shard = row0_shard(*mesh(), columns, groups);
  stand_ins_.push_back(register_distributed_parameter(
      name, at::empty(description.shard.local_sizes, new_parameter()), description));
  return stand_ins_.back();
}

void MeshModule::agree_on_row0() {
  if (agreed_ || stand_ins_.empty() || mesh()->side() == 1 || tensor_parallel().shapes_only) {
    return;
  }
  const at::Tensor trained = at::zeros({static_cast<std::int64_t>(stand_ins_.size())}, at::kLong);
  for (std::size_t i = 0; i < stand_ins_.size(); ++i) {
    trained[static_cast<std::int64_t>(i)] =
        static_cast<std::int64_t>(stand_ins_[i].requires_grad());
  }
  mesh()->column_group().broadcast(trained, mesh()->in_column(0));
  if (mesh()->row() != 0) {
    for (std::size_t i = 0; i < stand_ins_.size(); ++i) {
      stand_ins_[i].set_requires_grad(
          trained[static_cast<std::int64_t>(i)].item<std::int64_t>() != 0);
    }
  }
  agreed_ = true;
}

Linear2DImpl::Linear2DImpl(const Linear2DOptions& options)
    : weight(register_block("weight", options.in, options.out, options.groups(), options.out_in())),
      options_(options) {
  if (options.bias()) {
    bias = register_row0("bias", options.out, options.groups());
  }
}

at::Tensor Linear2DImpl::forward(const at::Tensor& x) {
  agree_on_row0();
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = options_.groups() * options_.out.size(mesh()->column());
  at::Tensor y = summa_ab(
      mesh(),
      x.reshape({-1, x.size(-1)}),
      weight,
      {options_.in,
       options_.out_in(),
       columns_to_tell(*mesh(), x, options_.groups() * options_.out.length())});
  if (options_.bias()) {
    y = add_from_row0(mesh(), y, bias);
  }
  return at::_unsafe_view(y, sizes);
}

LayerNorm2DImpl::LayerNorm2DImpl(const Blocks& hidden, double eps)
    : weight(register_row0("weight", hidden)),
      bias(register_row0("bias", hidden)),
      hidden_(hidden),
      eps_(eps) {}

at::Tensor LayerNorm2DImpl::forward(const at::Tensor& x) {
  agree_on_row0();
  return layer_norm(mesh(), x, weight, bias, hidden_, eps_);
}

Embedding2DImpl::Embedding2DImpl(
    const Blocks& vocabulary,
    const Blocks& hidden,
    std::int64_t padding_row)
    : weight(register_block("weight", vocabulary, hidden)),
      vocabulary_(vocabulary),
      padding_row_(padding_row) {}

at::Tensor Embedding2DImpl::forward(const at::Tensor& ids) {
  return embedding(mesh(), weight, ids, vocabulary_, padding_row_);
}

TiedLinear2DImpl::TiedLinear2DImpl(
    const Embedding2DImpl& embedding,
    const Blocks& vocabulary,
    const Blocks& hidden)
    : vocabulary_(vocabulary), hidden_(hidden.length()) {
  DistributedParameter description;
  description.shard = block_shard(*mesh(), vocabulary, hidden, 1, false);
  weight_ = register_distributed_parameter("weight", embedding.weight, description);
}

at::Tensor TiedLinear2DImpl::forward(const at::Tensor& x) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = vocabulary_.size(mesh()->column());
  return at::_unsafe_view(
      summa_abt(
          mesh(),
          x.reshape({-1, x.size(-1)}),
          weight_,
          {vocabulary_, false, columns_to_tell(*mesh(), x, hidden_)}),
      sizes);
}

} // namespace tessera::nn::two_d
