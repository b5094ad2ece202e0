#include "tessera/nn/parallel/primitives.h"

#include <utility>

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/nn/parallel/collectives.h"

namespace tessera::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// What a node of the graph keeps of its forward call.
struct PrimitiveCall : torch::CustomClassHolder {
  TensorParallel parallel;
  std::int64_t dim = 0;
  Lengths lengths;
  std::int64_t merge_dim = 0;
  Lengths merge_lengths;
};
using PrimitiveCallPtr = c10::intrusive_ptr<PrimitiveCall>;

void keep_call(AutogradContext* context, const PrimitiveCallPtr& call) {
  context->saved_data["call"] = c10::IValue::make_capsule(call);
}

const PrimitiveCall& call_of(const c10::intrusive_ptr<torch::CustomClassHolder>& capsule) {
  return static_cast<const PrimitiveCall&>(*capsule);
}

PrimitiveCallPtr new_call(std::int64_t dim) {
  auto call = c10::make_intrusive<PrimitiveCall>();
  call->parallel = tensor_parallel();
  call->dim = dim;
  return call;
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

struct GatherNode : Function<GatherNode> {
  static at::Tensor
  forward(AutogradContext* context, const at::Tensor& tensor, const PrimitiveCallPtr& call) {
    keep_call(context, call);
    return gather(call->parallel, tensor, call->dim, call->lengths);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto kept = context->saved_data["call"].toCapsule();
    const PrimitiveCall& call = call_of(kept);
    return {reduce_scatter(call.parallel, grads[0], call.dim, call.lengths), {}};
  }
};

struct ReduceScatterNode : Function<ReduceScatterNode> {
  static at::Tensor
  forward(AutogradContext* context, const at::Tensor& tensor, const PrimitiveCallPtr& call) {
    keep_call(context, call);
    return reduce_scatter(call->parallel, tensor, call->dim, call->lengths);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto kept = context->saved_data["call"].toCapsule();
    const PrimitiveCall& call = call_of(kept);
    return {gather(call.parallel, grads[0], call.dim, call.lengths), {}};
  }
};

struct ExchangeNode : Function<ExchangeNode> {
  static at::Tensor
  forward(AutogradContext* context, const at::Tensor& tensor, const PrimitiveCallPtr& call) {
    keep_call(context, call);
    return exchange(
        call->parallel, tensor, call->dim, call->lengths, call->merge_dim, call->merge_lengths);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto kept = context->saved_data["call"].toCapsule();
    const PrimitiveCall& call = call_of(kept);
    return {
        exchange(
            call.parallel, grads[0], call.merge_dim, call.merge_lengths, call.dim, call.lengths),
        {}};
  }
};

/// The sum goes to a tensor of its own: the argument may be used elsewhere.
at::Tensor reduced_copy(const TensorParallel& parallel, const at::Tensor& tensor) {
  at::Tensor sum = tensor.clone(at::MemoryFormat::Contiguous);
  all_reduce(parallel, sum);
  return sum;
}

struct ForwardAllReduceNode : Function<ForwardAllReduceNode> {
  static at::Tensor
  forward(AutogradContext* /*context*/, const at::Tensor& tensor, const PrimitiveCallPtr& call) {
    return reduced_copy(call->parallel, tensor);
  }
  static variable_list backward(AutogradContext* /*context*/, variable_list grads) {
    return {grads[0], {}};
  }
};

struct BackwardAllReduceNode : Function<BackwardAllReduceNode> {
  static at::Tensor
  forward(AutogradContext* context, const at::Tensor& tensor, const PrimitiveCallPtr& call) {
    keep_call(context, call);
    return tensor.view_as(tensor);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto kept = context->saved_data["call"].toCapsule();
    return {reduced_copy(call_of(kept).parallel, grads[0]), {}};
  }
};

} // namespace

at::Tensor fused_allgather_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  auto call = new_call(checked_dim("fused_allgather_for_tp", tensor, dim));
  if (call->parallel.size() == 1) {
    return tensor;
  }
  call->lengths = exchange_length(call->parallel, tensor.size(call->dim));
  return GatherNode::apply(tensor, call);
}

at::Tensor fwd_allreduce_for_tp(const at::Tensor& tensor) {
  auto call = new_call(0);
  return call->parallel.size() == 1 ? tensor : ForwardAllReduceNode::apply(tensor, call);
}

at::Tensor bwd_allreduce_for_tp(const at::Tensor& tensor) {
  auto call = new_call(0);
  return call->parallel.size() == 1 ? tensor : BackwardAllReduceNode::apply(tensor, call);
}

at::Tensor
scatter_and_merge_for_tp(const at::Tensor& tensor, std::int64_t split_dim, std::int64_t merge_dim) {
  auto call = new_call(checked_dim("scatter_and_merge_for_tp", tensor, split_dim));
  call->merge_dim = checked_dim("scatter_and_merge_for_tp", tensor, merge_dim);
  if (call->dim == call->merge_dim) {
    throw ShapeError(tessera::str(
        "scatter_and_merge_for_tp: split_dim and merge_dim are both ",
        split_dim,
        "; give two different dimensions"));
  }
  if (call->parallel.size() == 1) {
    return tensor;
  }
  call->lengths = even_lengths(tensor.size(call->dim), call->parallel.size());
  call->merge_lengths = exchange_length(call->parallel, tensor.size(call->merge_dim));
  return ExchangeNode::apply(tensor, call);
}

at::Tensor reduce_scatter_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  auto call = new_call(checked_dim("reduce_scatter_for_tp", tensor, dim));
  if (call->parallel.size() == 1) {
    return tensor;
  }
  call->lengths = even_lengths(tensor.size(call->dim), call->parallel.size());
  return ReduceScatterNode::apply(tensor, call);
}

} // namespace tessera::nn
