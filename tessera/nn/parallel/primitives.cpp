#include "tessera/nn/parallel/primitives.h"

#include <functional>
#include <utility>

#include "tessera/autograd/node_data.h"
#include "tessera/base/error.h"
#include "tessera/nn/parallel/collectives.h"

namespace tessera::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// A linear map of one tensor and its adjoint; neither needs the operand.
struct LinearMap {
  using Direction = std::function<at::Tensor(const at::Tensor&)>;
  Direction forward;
  Direction adjoint;
};

at::Tensor mapped(const at::Tensor& x, LinearMap::Direction forward, LinearMap::Direction adjoint);

struct LinearMapNode : Function<LinearMapNode> {
  static at::Tensor
  forward(AutogradContext* context, const at::Tensor& x, const NodeDataPtr<LinearMap>& map) {
    // A missing gradient stays undefined and does not become zeros.
    context->set_materialize_grads(false);
    save_node_data(context, map);
    return map->value.forward(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[0].defined()) {
      return variable_list(2);
    }
    const auto map = saved_node_data<LinearMap>(context);
    return {mapped(grads[0], map->value.adjoint, map->value.forward), {}};
  }
};

at::Tensor mapped(const at::Tensor& x, LinearMap::Direction forward, LinearMap::Direction adjoint) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) {
    return forward(x); // ids, masks, gradients
  }
  return LinearMapNode::apply(x, node_data(LinearMap{std::move(forward), std::move(adjoint)}));
}

std::int64_t checked_dim(const char* what, const at::Tensor& tensor, std::int64_t dim) {
  const std::int64_t dims = tensor.dim();
  if (dim < -dims || dim >= dims) {
    throw ShapeError(tessera::str(
        what,
        ": dimension ",
        dim,
        " of a tensor of sizes ",
        tensor.sizes(),
        "; expected ",
        -dims,
        " to ",
        dims - 1));
  }
  return dim < 0 ? dim + dims : dim;
}

at::Tensor
own_slice(const Ranks& ranks, const at::Tensor& tensor, std::int64_t dim, const Lengths& lengths) {
  const Range own = slice_range(lengths, ranks.rank());
  return tensor.narrow(dim, own.start, own.size()).contiguous();
}

/// Writes the sum to a new tensor, because the argument may be used elsewhere.
at::Tensor reduced_copy(const Ranks& ranks, const at::Tensor& tensor) {
  at::Tensor sum = tensor.clone(at::MemoryFormat::Contiguous);
  all_reduce(ranks, sum);
  return sum;
}

} // namespace

at::Tensor fused_allgather_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths) {
  const std::int64_t d = checked_dim("fused_allgather_for_tp", tensor, dim);
  if (ranks.size() == 1) {
    return tensor;
  }
  return mapped(
      tensor,
      [=](const at::Tensor& t) { return gather(ranks, t, d, lengths); },
      [=](const at::Tensor& g) { return reduce_scatter(ranks, g, d, lengths); });
}

at::Tensor fused_allgather_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  const Ranks ranks = tensor_parallel();
  const std::int64_t d = checked_dim("fused_allgather_for_tp", tensor, dim);
  return fused_allgather_for_tp(ranks, tensor, d, exchange_length(ranks, tensor.size(d)));
}

at::Tensor fwd_allreduce_for_tp(const Ranks& ranks, const at::Tensor& tensor) {
  if (ranks.size() == 1) {
    return tensor;
  }
  return mapped(
      tensor,
      [=](const at::Tensor& t) { return reduced_copy(ranks, t); },
      [](const at::Tensor& g) { return g; });
}

at::Tensor fwd_allreduce_for_tp(const at::Tensor& tensor) {
  return fwd_allreduce_for_tp(tensor_parallel(), tensor);
}

at::Tensor bwd_allreduce_for_tp(const Ranks& ranks, const at::Tensor& tensor) {
  if (ranks.size() == 1) {
    return tensor;
  }
  return mapped(
      tensor,
      [](const at::Tensor& t) { return t.view_as(t); },
      [=](const at::Tensor& g) { return reduced_copy(ranks, g); });
}

at::Tensor bwd_allreduce_for_tp(const at::Tensor& tensor) {
  return bwd_allreduce_for_tp(tensor_parallel(), tensor);
}

at::Tensor scatter_and_merge_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths) {
  const std::int64_t split = checked_dim("scatter_and_merge_for_tp", tensor, split_dim);
  const std::int64_t merge = checked_dim("scatter_and_merge_for_tp", tensor, merge_dim);
  if (split == merge) {
    throw ShapeError(tessera::str(
        "scatter_and_merge_for_tp: split_dim and merge_dim are both ",
        split_dim,
        "; give two different dimensions"));
  }
  if (ranks.size() == 1) {
    return tensor;
  }
  return mapped(
      tensor,
      [=](const at::Tensor& t) {
        return exchange(ranks, t, split, split_lengths, merge, merge_lengths);
      },
      [=](const at::Tensor& g) {
        return exchange(ranks, g, merge, merge_lengths, split, split_lengths);
      });
}

at::Tensor
scatter_and_merge_for_tp(const at::Tensor& tensor, std::int64_t split_dim, std::int64_t merge_dim) {
  const Ranks ranks = tensor_parallel();
  const std::int64_t split = checked_dim("scatter_and_merge_for_tp", tensor, split_dim);
  const std::int64_t merge = checked_dim("scatter_and_merge_for_tp", tensor, merge_dim);
  return scatter_and_merge_for_tp(
      ranks,
      tensor,
      split,
      even_lengths(tensor.size(split), ranks.size()),
      merge,
      split == merge ? Lengths() : exchange_length(ranks, tensor.size(merge)));
}

at::Tensor reduce_scatter_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths) {
  const std::int64_t d = checked_dim("reduce_scatter_for_tp", tensor, dim);
  if (ranks.size() == 1) {
    return tensor;
  }
  return mapped(
      tensor,
      [=](const at::Tensor& t) { return reduce_scatter(ranks, t, d, lengths); },
      [=](const at::Tensor& g) { return gather(ranks, g, d, lengths); });
}

at::Tensor reduce_scatter_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  const Ranks ranks = tensor_parallel();
  const std::int64_t d = checked_dim("reduce_scatter_for_tp", tensor, dim);
  return reduce_scatter_for_tp(ranks, tensor, d, even_lengths(tensor.size(d), ranks.size()));
}

at::Tensor slice_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths) {
  const std::int64_t d = checked_dim("slice_for_tp", tensor, dim);
  if (ranks.size() == 1) {
    return tensor;
  }
  return mapped(
      tensor,
      [=](const at::Tensor& t) { return own_slice(ranks, t, d, lengths); },
      [=](const at::Tensor& g) { return gather(ranks, g, d, lengths); });
}

at::Tensor join_slices_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths) {
  const std::int64_t d = checked_dim("join_slices_for_tp", tensor, dim);
  if (ranks.size() == 1) {
    return tensor;
  }
  return mapped(
      tensor,
      [=](const at::Tensor& t) { return gather(ranks, t, d, lengths); },
      [=](const at::Tensor& g) { return own_slice(ranks, g, d, lengths); });
}

} // namespace tessera::nn
