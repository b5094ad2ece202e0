#include "tessera/autograd/weight_gradient.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/f32_gradients.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

thread_local bool t_in_place = false;

bool is_trained_leaf(const at::Tensor& tensor) {
  return tensor.requires_grad() && tensor.is_leaf() && !tensor.is_sparse();
}

/// Returns whether a backward that runs now may add to the parameter's gradient,
/// or create it.
bool takes_parts(const at::Tensor& parameter) {
  const WeightGradientPass* pass = WeightGradientPass::current();
  if (pass == nullptr || at::GradMode::is_enabled() || !is_trained_leaf(parameter)) {
    return false;
  }
  // It is not empty under torch::autograd::grad and a backward with chosen inputs.
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || !chosen->empty()) {
    return false;
  }
  const at::Tensor& gradient = parameter.grad();
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  const bool fits = !gradient.defined() ||
                    (gradient.layout() == at::kStrided && gradient.sizes() == parameter.sizes() &&
                     (gradient.scalar_type() == parameter.scalar_type() ||
                      (adds_in_f32(*accumulator) && gradient.scalar_type() == at::kFloat)) &&
                     gradient.device() == parameter.device() && !gradient.requires_grad() &&
                     !gradient.key_set().has(kModeKey)); // no memory to write to
  const auto& hooks = accumulator->pre_hooks();
  return fits && pass->adds_once(accumulator.get()) &&
         torch::autograd::impl::hooks(parameter).empty() &&
         std::all_of(hooks.begin(), hooks.end(), [](const auto& hook) {
           return dynamic_cast<const OrderedAdditionHook*>(hook.get()) != nullptr;
         });
}

at::Tensor zeros_for(const at::Tensor& parameter) {
  at::Tensor place;
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  for_each_addition_hook(*accumulator, [&](const AdditionHook& hook) {
    place = place.defined() ? place : hook.place();
  });
  if (place.defined()) {
    return place.zero_();
  }
  return at::zeros_like(
      parameter,
      adds_in_f32(*accumulator) ? f32_sum_options(parameter)
                                : parameter.options().requires_grad(false));
}

at::Tensor gradient_to_add_to(const at::Tensor& parameter) {
  if (!parameter.grad().defined()) {
    parameter.mutable_grad() = zeros_for(parameter);
  } else if (adds_in_f32(*torch::autograd::impl::grad_accumulator(parameter))) {
    widen_gradient(parameter); // the script's own
  }
  return parameter.grad();
}

std::function<void()> addition_of_product(at::Tensor parameter, at::Tensor rows, at::Tensor x) {
  return [parameter = std::move(parameter), rows = std::move(rows), x = std::move(x)] {
    const at::NoGradGuard no_grad;
    // The gradient is looked up now, because its bucket may have left meanwhile.
    // It begins as zeros: a BLAS may sum in another order when it has nothing to
    // add to, and then the bits would tell whether a gradient was there.
    at::Tensor sum = gradient_to_add_to(parameter);
    if (sum.scalar_type() == rows.scalar_type()) {
      sum.addmm_(rows.t(), x);
    } else {
      sum.add_(rows.t().mm(x)); // the gradient that a microbatch has anywhere else, added in f32
    }
  };
}

/// Returns whether a GradientOrder decides when a part of `takes_parts` is added.
bool is_ordered(const at::Tensor& parameter) {
  return WeightGradientPass::current()->orders(
      torch::autograd::impl::grad_accumulator(parameter).get());
}

void add_in_order(const at::Tensor& parameter, std::function<void()> addition) {
  WeightGradientPass::current()->add(
      torch::autograd::impl::grad_accumulator(parameter).get(), std::move(addition));
}

/// Returns whether a product of these operands may be deferred to the end of the pass.
bool may_come_later(const at::Tensor& parameter, const std::vector<at::Tensor>& operands) {
  if (!takes_parts(parameter) || !WeightGradientPass::current()->defers() ||
      !WeightGradientPass::current()->may_hold(parameter, operands)) {
    return false;
  }
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  const auto& hooks = accumulator->post_hooks();
  return std::all_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const AdditionHook*>(hook.get()) != nullptr;
  });
}

/// x W^T (W: [out, in]) or x W (W: [in, out]), with or without a bias.
struct ProductWithWeight : Function<ProductWithWeight> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const TorchOptional<at::Tensor>& bias,
      bool transposed) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // A missing gradient stays undefined and does not become zeros: a parameter
    // that receives none stays without a gradient.
    context->set_materialize_grads(false);
    context->save_for_backward({x, weight});
    context->saved_data["transposed"] = transposed;
    if (bias.has_value()) {
      context->saved_data["bias_sizes"] = bias->sizes().vec();
    }
    const at::Tensor matrix = transposed ? weight.t() : weight;
    return bias.has_value() ? at::addmm(*bias, x, matrix) : at::mm(x, matrix);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& rows = grads[0];
    const bool transposed = context->saved_data["transposed"].toBool();
    variable_list result(4);
    if (!rows.defined()) {
      return result;
    }
    if (context->needs_input_grad(0)) {
      result[0] = rows.mm(transposed ? weight : weight.t());
    }
    if (context->needs_input_grad(1)) {
      result[1] = transposed ? now_or_later(weight, rows, x) : now_or_later(weight, x, rows);
    }
    // An absent bias has no edge to ask about.
    if (context->saved_data.count("bias_sizes") != 0 && context->needs_input_grad(2)) {
      result[2] = at::sum_to(rows, context->saved_data["bias_sizes"].toIntVector());
    }
    return result;
  }

  /// add_weight_gradient, or a promise of it.
  static at::Tensor
  now_or_later(const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& x) {
    if (!may_come_later(weight, {rows, x})) {
      return add_weight_gradient(weight, rows, x);
    }
    WeightGradientPass::current()->defer(
        weight, {addition_of_product(weight, rows, x), held_bytes({rows, x})});
    return {};
  }
};

/// Rows of a table.
struct LookUp : Function<LookUp> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& table,
      const at::Tensor& ids,
      std::int64_t padding,
      bool by_frequency) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    context->save_for_backward({table, ids});
    context->saved_data["padding"] = padding;
    context->saved_data["by_frequency"] = by_frequency;
    return at::embedding(table, ids, padding, by_frequency);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& table = saved[0];
    const at::Tensor& ids = saved[1];
    const std::int64_t padding = context->saved_data["padding"].toInt();
    const bool by_frequency = context->saved_data["by_frequency"].toBool();
    variable_list result(4);
    if (!grads[0].defined()) {
      return result;
    }
    if (by_frequency || !takes_parts(table)) {
      result[0] =
          at::embedding_backward(grads[0], ids, table.size(0), padding, by_frequency, false);
    } else if (is_ordered(table)) {
      add_in_order(table, [table, ids, gradient = grads[0], padding] {
        const at::NoGradGuard no_grad;
        add_rows(gradient_to_add_to(table), ids, gradient, padding);
      });
    } else {
      add_rows(gradient_to_add_to(table), ids, grads[0], padding);
    }
    return result;
  }

  static void add_rows(
      const at::Tensor& sum,
      const at::Tensor& ids,
      const at::Tensor& gradient,
      std::int64_t padding) {
    // The gradient of the padding row is dropped.
    const bool padded = padding >= 0 && padding < sum.size(0);
    const at::Tensor kept = padded ? sum.select(0, padding).clone() : sum;
    sum.index_add_(0, ids.reshape({-1}), gradient.reshape({-1, sum.size(1)}).to(sum.scalar_type()));
    if (padded) {
      sum.select(0, padding).copy_(kept);
    }
  }
};

/// Returns whether this call gets a grad_fn of this library.
bool wanted(const at::Tensor& x, const WeightOperand& weight) {
  return weight.parameter.defined() && x.dim() == 2 &&
         x.scalar_type() == weight.parameter.scalar_type() &&
         x.device() == weight.parameter.device() && !x.is_sparse();
}

/// libtorch's own kernels of this operator are found under the alias key that
/// covers all devices; AutogradOther is the one that no backend overrides.
c10::DispatchKeySet as_libtorch(c10::DispatchKeySet keys) {
  return keys.remove(c10::DispatchKey::AutogradCPU).add(c10::DispatchKey::AutogradOther);
}

at::Tensor mm(c10::DispatchKeySet keys, const at::Tensor& x, const at::Tensor& matrix) {
  if (t_in_place && at::GradMode::is_enabled()) {
    const WeightOperand weight = weight_operand(matrix);
    if (wanted(x, weight)) {
      return ProductWithWeight::apply(
          x, weight.parameter, TorchOptional<at::Tensor>(), weight.transposed);
    }
  }
  return at::_ops::mm::redispatch(as_libtorch(keys), x, matrix);
}

at::Tensor addmm(
    c10::DispatchKeySet keys,
    const at::Tensor& bias,
    const at::Tensor& x,
    const at::Tensor& matrix,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  if (t_in_place && at::GradMode::is_enabled() && beta.equal(1) && alpha.equal(1) &&
      !bias.is_sparse()) {
    const WeightOperand weight = weight_operand(matrix);
    if (wanted(x, weight)) {
      return ProductWithWeight::apply(
          x, weight.parameter, TorchOptional<at::Tensor>(bias), weight.transposed);
    }
  }
  return at::_ops::addmm::redispatch(as_libtorch(keys), bias, x, matrix, beta, alpha);
}

// libtorch's type of a padding index: int64_t, since 2.0 c10::SymInt.
template <typename Integer>
Integer type_of_padding(
    at::Tensor (*)(c10::DispatchKeySet, const at::Tensor&, const at::Tensor&, Integer, bool, bool));
using Padding = decltype(type_of_padding(&at::_ops::embedding::redispatch));

at::Tensor embedding(
    c10::DispatchKeySet keys,
    const at::Tensor& table,
    const at::Tensor& ids,
    Padding padding,
    bool by_frequency,
    bool sparse) {
  if (t_in_place && at::GradMode::is_enabled() && !sparse && is_trained_leaf(table) &&
      table.dim() == 2 && table.device() == ids.device()) {
    return LookUp::apply(
        table, ids, c10::SymInt(padding).guard_int(__FILE__, __LINE__), by_frequency);
  }
  return at::_ops::embedding::redispatch(
      as_libtorch(keys), table, ids, padding, by_frequency, sparse);
}

// Registered by the first scope, not by static initialisation: a program that
// never opens one has libtorch's dispatch table untouched.
void register_kernels() {
  static const auto libraries = [] {
    std::vector<std::unique_ptr<torch::Library>> made;
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      auto library = std::make_unique<torch::Library>(
          torch::Library::IMPL, "aten", TorchOptional<c10::DispatchKey>(key), __FILE__, __LINE__);
      library->impl("mm", TORCH_FN(mm));
      library->impl("addmm", TORCH_FN(addmm));
      library->impl("embedding", TORCH_FN(embedding));
      made.push_back(std::move(library));
    }
    return made;
  }();
  (void)libraries;
}

} // namespace

WeightOperand weight_operand(const at::Tensor& matrix) {
  if (matrix.dim() != 2 || !matrix.requires_grad()) {
    return {};
  }
  if (is_trained_leaf(matrix)) {
    return {matrix, false};
  }
  if (!matrix.is_view()) {
    return {};
  }
  const at::Tensor base(matrix._base());
  const auto node = matrix.grad_fn();
  // A view that was written to, and a view of a view, have another grad_fn.
  const bool transpose = node != nullptr && node->name() == "TBackward0" && is_trained_leaf(base) &&
                         base.dim() == 2 && matrix.storage_offset() == base.storage_offset() &&
                         matrix.size(0) == base.size(1) && matrix.size(1) == base.size(0) &&
                         matrix.stride(0) == base.stride(1) && matrix.stride(1) == base.stride(0);
  return transpose ? WeightOperand{base, true} : WeightOperand{};
}

WeightGradientScope::WeightGradientScope() : previous_(t_in_place) {
  register_kernels();
  t_in_place = true;
}

WeightGradientScope::~WeightGradientScope() {
  t_in_place = previous_;
}

bool WeightGradientScope::active() {
  return t_in_place;
}

at::Tensor addable_gradient(const at::Tensor& parameter) {
  if (!takes_parts(parameter) || is_ordered(parameter) ||
      adds_in_f32(*torch::autograd::impl::grad_accumulator(parameter))) {
    return {};
  }
  return gradient_to_add_to(parameter);
}

at::Tensor
add_weight_gradient(const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& x) {
  if (!takes_parts(weight)) {
    return rows.t().mm(x);
  }
  auto addition = addition_of_product(weight, rows, x);
  if (is_ordered(weight)) {
    add_in_order(weight, std::move(addition));
  } else {
    addition();
  }
  return {};
}

bool defer_weight_gradient(const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& x) {
  if (!may_come_later(weight, {rows, x})) {
    return false;
  }
  WeightGradientPass::Deferral deferral;
  deferral.held = held_bytes({rows, x});
  const auto accumulator = torch::autograd::impl::grad_accumulator(weight);
  deferral.as_the_engine = is_ordered(weight) || adds_in_f32(*accumulator);
  if (deferral.as_the_engine) {
    deferral.compute = [accumulator, rows, x] {
      const at::NoGradGuard no_grad;
      add_as_the_engine(*accumulator, rows.t().mm(x));
    };
  } else {
    deferral.compute = addition_of_product(weight, rows, x);
  }
  WeightGradientPass::current()->defer(weight, std::move(deferral));
  return true;
}

} // namespace tessera
