#include "tessera/nn/layers/distributed_product.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/autograd/node_data.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct ProductCall {
  TensorParallel parallel;
  ProductPlan plan;
  bool has_bias = false;
};

at::Tensor operand_of(const ProductCall& call, const at::Tensor& x) {
  switch (call.plan.operand) {
    case Operand::kOwnSamples:
      return gather(call.parallel, x, 0, call.plan.rows);
    case Operand::kOwnSamplesToShard:
      return exchange(call.parallel, x, 1, call.plan.in, 0, call.plan.rows);
    case Operand::kSharded:
    case Operand::kReplicated:
    case Operand::kShardedToWhole: // joined by the product itself
      break;
  }
  return x;
}

/// The adjoint of operand_of, started.
Pending start_adjoint(const ProductCall& call, const at::Tensor& gradient) {
  switch (call.plan.operand) {
    case Operand::kReplicated:
      return start_all_reduce(call.parallel, gradient);
    case Operand::kOwnSamples:
      return start_reduce_scatter(call.parallel, gradient, 0, call.plan.rows);
    case Operand::kOwnSamplesToShard:
      return start_exchange(call.parallel, gradient, 0, call.plan.rows, 1, call.plan.in);
    case Operand::kSharded:
    case Operand::kShardedToWhole:
      break;
  }
  return [gradient] { return gradient; };
}

std::int64_t widest(const Lengths& lengths) {
  return *std::max_element(lengths.begin(), lengths.end());
}

/// Returns x W^T with the columns of each rank in a block of their own, the layout of
/// the reduce-scatter, so that nothing is copied between the two.
at::Tensor product_in_blocks(const Lengths& out, const at::Tensor& x, const at::Tensor& weight) {
  const std::int64_t ranks = static_cast<std::int64_t>(out.size());
  const std::int64_t width = widest(out);
  const std::vector<std::int64_t> sizes{ranks, x.size(0), width};
  const bool even = weight.size(0) == ranks * width;
  const at::Tensor blocks = even ? at::empty(sizes, x.options()) : at::zeros(sizes, x.options());
  std::int64_t start = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    at::Tensor block = blocks.select(0, r).narrow(1, 0, out[r]);
    at::mm_out(block, x, weight.narrow(0, start, out[r]).t());
    start += out[r];
  }
  return blocks;
}

/// Every rank's columns, [n, R, widest].
at::Tensor
column_blocks(const TensorParallel& parallel, const Lengths& lengths, const at::Tensor& own) {
  const std::int64_t width = widest(lengths);
  if (own.size(1) == width) {
    return gather_blocks(parallel, own);
  }
  const at::Tensor padded = at::zeros({own.size(0), width}, own.options());
  padded.narrow(1, 0, own.size(1)).copy_(own);
  return gather_blocks(parallel, padded);
}

bool gathers_columns(const ProductCall& call) {
  return call.plan.operand == Operand::kShardedToWhole && call.parallel.size() > 1;
}

/// Returns x W^T of an x in blocks of columns, which are never joined.
at::Tensor
product_of_blocks(const Lengths& in, const at::Tensor& blocks, const at::Tensor& weight) {
  at::Tensor product;
  std::int64_t start = 0;
  for (std::size_t r = 0; r < in.size(); ++r) {
    const at::Tensor block = blocks.select(0, static_cast<std::int64_t>(r)).narrow(1, 0, in[r]);
    const at::Tensor columns = weight.narrow(1, start, in[r]).t();
    if (r == 0) {
      product = at::mm(block, columns);
    } else {
      product.addmm_(block, columns);
    }
    start += in[r];
  }
  return product;
}

at::Tensor plain_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
}

at::Tensor result_of(
    const ProductCall& call,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const TensorParallel& parallel = call.parallel;
  const ProductPlan& plan = call.plan;
  const bool inside = plan.bias_inside || plan.result == Result::kSharded;
  if ((inside && !gathers_columns(call)) || parallel.size() == 1) {
    const at::Tensor product = plain_product(x, weight, bias);
    if (plan.result == Result::kReplicated) {
      all_reduce(parallel, product);
    } else if (plan.result == Result::kOwnSamples) {
      return reduce_scatter(parallel, product, 0, plan.rows);
    }
    return product;
  }
  at::Tensor result;
  if (gathers_columns(call)) {
    TESSERA_CHECK(plan.result == Result::kSharded);
    result = product_of_blocks(plan.in, column_blocks(parallel, plan.in, x), weight);
  } else if (plan.result == Result::kShardChannels) {
    result = reduce_scatter_blocks(parallel, product_in_blocks(plan.out, x, weight));
    const std::int64_t own = plan.out[parallel.rank()];
    if (result.size(1) != own) {
      result = result.narrow(1, 0, own).contiguous();
    }
  } else {
    result = at::mm(x, weight.t());
    if (plan.result == Result::kReplicated) {
      all_reduce(parallel, result);
    } else {
      result = reduce_scatter(parallel, result, 0, plan.rows);
    }
  }
  return bias.defined() ? result.add_(bias) : result;
}

/// The gradient of a weight, computed in parts. Parts are added to the parameter's own
/// gradient where that is possible, else to a tensor that the backward returns.
class WeightGradient {
 public:
  explicit WeightGradient(const at::Tensor& weight)
      : tensor_(addable_gradient(weight)), adds_(tensor_.defined()) {
    if (!adds_) {
      tensor_ = at::empty_like(weight);
    }
  }
  const at::Tensor& tensor() const {
    return tensor_;
  }
  /// Adds the product x y to `part` of the tensor.
  void add(at::Tensor part, const at::Tensor& x, const at::Tensor& y) const {
    if (adds_) {
      part.addmm_(x, y);
    } else {
      at::mm_out(part, x, y);
    }
  }
  /// What the backward returns.
  at::Tensor left_over() const {
    return adds_ ? at::Tensor() : tensor_;
  }

 private:
  at::Tensor tensor_;
  bool adds_;
};

struct ProductGradients {
  at::Tensor x;
  at::Tensor weight;
};

ProductGradients gradients_of_blocks(
    const ProductCall& call,
    const at::Tensor& blocks,
    const at::Tensor& x,
    const at::Tensor& weight,
    bool for_x,
    bool for_weight) {
  ProductGradients gradients;
  WeightGradient sum(weight);
  std::int64_t start = 0;
  for (std::size_t r = 0; r < call.plan.out.size(); ++r) {
    const std::int64_t width = call.plan.out[r];
    const at::Tensor block = blocks.select(0, static_cast<std::int64_t>(r)).narrow(1, 0, width);
    if (for_x) {
      const at::Tensor rows = weight.narrow(0, start, width);
      if (r == 0) {
        gradients.x = at::mm(block, rows);
      } else {
        gradients.x.addmm_(block, rows);
      }
    }
    if (for_weight) {
      sum.add(sum.tensor().narrow(0, start, width), block.t(), x);
    }
    start += width;
  }
  gradients.weight = for_weight ? sum.left_over() : at::Tensor();
  return gradients;
}

/// Computes the gradients of product_of_blocks; x is gathered again.
ProductGradients gradients_of_gathered(
    const ProductCall& call,
    const at::Tensor& gradient,
    const at::Tensor& x,
    const at::Tensor& weight,
    bool for_x,
    bool for_weight) {
  const Lengths& in = call.plan.in;
  ProductGradients gradients;
  std::int64_t start = 0;
  if (for_x) {
    // g W in blocks of columns, for the reduce-scatter.
    gradients.x = reduce_scatter_blocks(call.parallel, product_in_blocks(in, gradient, weight.t()));
    gradients.x = gradients.x.narrow(1, 0, in[call.parallel.rank()]);
  }
  if (for_weight) {
    const at::Tensor blocks = column_blocks(call.parallel, in, x);
    WeightGradient sum(weight);
    for (std::size_t r = 0; r < in.size(); ++r) {
      sum.add(
          sum.tensor().narrow(1, start, in[r]),
          gradient.t(),
          blocks.select(0, static_cast<std::int64_t>(r)).narrow(1, 0, in[r]));
      start += in[r];
    }
    gradients.weight = sum.left_over();
  }
  return gradients;
}

struct ProductNode : Function<ProductNode> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const TorchOptional<at::Tensor>& bias,
      const NodeDataPtr<ProductCall>& call) {
    // A missing gradient stays undefined: a parameter that receives none has none, on all ranks.
    context->set_materialize_grads(false);
    const OwnDerivativeScope scope;
    const at::Tensor operand = operand_of(call->value, x);
    context->save_for_backward({operand, weight});
    scope.saves({operand});
    save_node_data(context, call);
    return recompute::product([&] {
      return result_of(call->value, operand, weight, call->value.has_bias ? *bias : at::Tensor());
    });
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    require_first_order("a product that tensor parallelism divides");
    if (!grads[0].defined()) {
      return variable_list(4);
    }
    const auto data = saved_node_data<ProductCall>(context);
    const ProductCall& call = data->value;
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const bool for_x = context->needs_input_grad(0);
    const bool for_weight = context->needs_input_grad(1);
    const ProductPlan& plan = call.plan;
    const at::Tensor own = grads[0].contiguous();

    at::Tensor whole = own;
    ProductGradients gradients;
    Pending x_gradient;
    if (gathers_columns(call)) {
      gradients = gradients_of_gathered(call, own, x, weight, for_x, for_weight);
      x_gradient = [g = gradients.x] { return g; };
    } else if (plan.result == Result::kShardChannels && call.parallel.size() > 1) {
      const at::Tensor blocks = column_blocks(call.parallel, plan.out, own);
      gradients = gradients_of_blocks(call, blocks, x, weight, for_x, for_weight);
      if (for_x) {
        x_gradient = start_adjoint(call, gradients.x);
      }
    } else {
      if (plan.result == Result::kOwnSamples) {
        whole = gather(call.parallel, own, 0, plan.rows);
      }
      if (for_x) {
        // This transfer overlaps the computation of the weight's gradient.
        x_gradient = start_adjoint(call, at::mm(whole, weight));
      }
      if (for_weight) {
        gradients.weight = add_weight_gradient(weight, whole, x);
      }
    }
    at::Tensor bias;
    if (call.has_bias && context->needs_input_grad(2)) {
      bias = (plan.bias_inside ? whole : own).sum(0);
    }
    return {for_x ? x_gradient() : at::Tensor(), gradients.weight, bias, {}};
  }
};

} // namespace

at::Tensor distributed_product(
    const TensorParallel& parallel,
    const ProductPlan& plan,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  // Autocast looks at libtorch's products, and sees none in the forward of a node.
  const bool casts = cpu_autocast::enabled() && x.device().is_cpu() && x.is_floating_point();
  const auto type = casts ? cpu_autocast::dtype() : x.scalar_type();
  const auto cast = [&](const at::Tensor& tensor) { return casts ? tensor.to(type) : tensor; };
  TorchOptional<at::Tensor> given;
  if (bias.defined()) {
    given = cast(bias);
  }
  return ProductNode::apply(
      cast(x),
      cast(weight),
      given,
      node_data(ProductCall{parallel, plan, bias.defined() && bias.numel() > 0}));
}

} // namespace tessera::nn
