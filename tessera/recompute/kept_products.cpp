#include "tessera/recompute/kept_products.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/node_data.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/half/norm_rows.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::recompute {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

thread_local KeptProducts* t_products = nullptr;
thread_local const void* t_module = nullptr; // whose call the region is
thread_local ProductScope::Run t_run = ProductScope::Run::kFirst;
thread_local bool t_call_is_returned = false;
thread_local bool t_product_is_returned = false;
// As said by the modules, without looking at regions.
thread_local bool t_call_said = false;
thread_local bool t_product_said = false;

bool lies_by_columns(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
}

/// libtorch's addmm without the product. Its gradients are computed as libtorch does, which looks
/// at the layout of each matrix, so that they have the same bits; in a WeightGradientScope that of
/// a parameter is added to in place, as the scope's own products do, with the bits of those.
struct KeptLinear : Function<KeptLinear> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& x,
      const at::Tensor& weight,
      const TorchOptional<at::Tensor>& bias) {
    context->set_materialize_grads(false);
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["in_place"] = WeightGradientScope::active();
    return given.variable_data();
  }

  static at::Tensor
  weight_gradient(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& gradient) {
    return lies_by_columns(weight) ? gradient.t().mm(x).t() : x.t().mm(gradient);
  }

  /// Returns whether the parameter behind the weight has got its gradient, or will.
  static bool
  added_in_place(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& gradient) {
    const WeightOperand operand = weight_operand(weight);
    if (!operand.parameter.defined()) {
      return false;
    }
    const at::Tensor& rows = operand.transposed ? gradient : x;
    const at::Tensor& columns = operand.transposed ? x : gradient;
    // Else weight_gradient() has the sum of another product, whose bits may differ.
    const bool as_product = operand.transposed == lies_by_columns(weight);
    if (as_product && defer_weight_gradient(operand.parameter, rows, columns)) {
      return true;
    }
    // Undefined under an order too, which would hold x until the end of the step.
    at::Tensor sum = addable_gradient(operand.parameter);
    if (!sum.defined()) {
      return false;
    }
    sum.addmm_(rows.t(), columns);
    return true;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    require_first_order("a product that is kept");
    if (!gradients[0].defined()) {
      return variable_list(4);
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& gradient = gradients[0];
    at::Tensor of_x;
    at::Tensor of_weight;
    if (context->needs_input_grad(1)) {
      of_x = lies_by_columns(x) ? weight.mm(gradient.t()).t() : gradient.mm(weight.t());
    }
    if (context->needs_input_grad(2)) {
      const bool added =
          context->saved_data["in_place"].toBool() && added_in_place(weight, x, gradient);
      of_weight = added ? at::Tensor() : weight_gradient(weight, x, gradient);
    }
    // The engine adds up a gradient that is larger than what it belongs to, as it does for addmm.
    const bool for_bias = context->saved_data["has_bias"].toBool() && context->needs_input_grad(3);
    return {at::Tensor(), of_x, of_weight, for_bias ? gradient : at::Tensor()};
  }
};

} // namespace

bool product_is_given() {
  return t_products != nullptr && t_run == ProductScope::Run::kSecond && t_products->gives();
}

at::Tensor given_product() {
  return product_is_given() ? t_products->next() : at::Tensor();
}

void keep_product(const at::Tensor& result) {
  if (t_products != nullptr && t_run == ProductScope::Run::kFirst) {
    t_products->keep(result);
  }
}

bool masks_are_kept() {
  return t_products != nullptr && t_run == ProductScope::Run::kFirst && t_products->with_results();
}

bool masks_are_given() {
  return t_products != nullptr && t_run == ProductScope::Run::kSecond && t_products->with_results();
}

void keep_mask(const KeptMask& mask) {
  if (masks_are_kept()) {
    t_products->keep_mask(mask);
  }
}

KeptMask given_mask() {
  return masks_are_given() ? t_products->next_mask() : KeptMask();
}

void keep_norm_rows(const half::NormRows& rows) {
  if (masks_are_kept()) {
    t_products->keep_norm_rows(rows);
  }
}

half::NormRows given_norm_rows() {
  return masks_are_given() ? t_products->next_norm_rows() : half::NormRows();
}

at::Tensor kept_linear(
    const at::Tensor& given,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const auto type = given.scalar_type(); // that of autocast, where it is on
  TorchOptional<at::Tensor> added;
  if (bias.defined()) {
    added = bias.to(type);
  }
  return KeptLinear::apply(given, x.to(type), weight.to(type), added);
}

ReturnedCall::ReturnedCall(const void* module)
    : previous_(std::exchange(t_call_is_returned, module != nullptr && module == t_module)),
      previously_said_(std::exchange(t_call_said, module != nullptr)) {}

ReturnedCall::~ReturnedCall() {
  t_call_is_returned = previous_;
  t_call_said = previously_said_;
}

at::Tensor ReturnedCall::of(at::Tensor result) const {
  if (t_call_is_returned && t_run == ProductScope::Run::kFirst) {
    t_products->returns(result);
  }
  return result;
}

ReturnedProduct::ReturnedProduct()
    : previous_(std::exchange(t_product_is_returned, t_call_is_returned)),
      previously_said_(std::exchange(t_product_said, t_call_said)) {}

ReturnedProduct::~ReturnedProduct() {
  t_product_is_returned = previous_;
  t_product_said = previously_said_;
}

bool product_is_returned() {
  return t_product_said;
}

void KeptProducts::keep(const at::Tensor& result) {
  if (t_product_is_returned) {
    returned_.push_back({result.sizes().vec(), result.options(), result, Version(result)});
  } else if (with_results_) {
    keep_result(result);
  }
}

void KeptProducts::keep_mask(const KeptMask& mask) {
  const bool restores = restores_random_ && mask.generator.defined();
  keep_result(mask.bits);
  keep_result(restores ? mask.generator : at::empty({0}, at::kByte));
}

void KeptProducts::keep_norm_rows(const half::NormRows& rows) {
  keep_result(rows.mean);
  keep_result(rows.rstd);
}

void KeptProducts::keep_result(const at::Tensor& result) {
  results_.push_back(result);
  versions_.emplace_back(result);
}

void KeptProducts::returns(const at::Tensor& result) {
  told_.push_back(result);
}

void KeptProducts::settle(
    const std::vector<at::Tensor>& results,
    const std::vector<at::Tensor>& args) {
  const auto is_among = [](const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
    return std::any_of(
        tensors.begin(), tensors.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
  };
  bool needed = told_.size() != 1 || !is_among(results, told_.front());
  for (const at::Tensor& result : results) {
    needed =
        needed || !(!result.defined() || result.is_same(told_.front()) || is_among(args, result));
  }
  state_ = needed ? Returned::kNeeded : Returned::kNotNeeded;
  told_.clear();
  if (needed && with_results_) {
    return;
  }
  for (Form& form : returned_) {
    form.value = at::Tensor();
  }
  if (needed) {
    returned_.clear(); // they are computed again
  }
}

bool KeptProducts::gives() const {
  return with_results_ || (t_product_is_returned && state_ == Returned::kNotNeeded);
}

at::Tensor KeptProducts::next() {
  if (!t_product_is_returned) {
    return next_result();
  }
  if (next_returned_ == returned_.size()) {
    refuse_more();
  }
  const Form& form = returned_[next_returned_++];
  if (!form.value.defined()) {
    return at::zeros(form.sizes, form.options);
  }
  check(form.version);
  return form.value.variable_data();
}

KeptMask KeptProducts::next_mask() {
  const at::Tensor bits = next_result();
  const at::Tensor generator = next_result();
  return {bits, generator.numel() > 0 ? generator : at::Tensor()};
}

half::NormRows KeptProducts::next_norm_rows() {
  const at::Tensor mean = next_result();
  const at::Tensor rstd = next_result();
  return {mean, rstd};
}

at::Tensor KeptProducts::next_result() {
  if (next_ == results_.size()) {
    refuse_more();
  }
  const std::size_t i = next_++;
  check(versions_.at(i));
  return results_[i].variable_data();
}

void KeptProducts::refuse_more() const {
  throw UserError(
      region_ +
      " computed more products when it was recomputed: its flow depends on data that has changed; "
      "take its activation checkpointing away");
}

void KeptProducts::check(const Version& version) const {
  if (version.changed()) {
    throw UserError(
        region_ +
        " keeps the results of its products, and one of them was changed in place: use the "
        "out-of-place form, or another strategy of activation checkpointing than \"selective\"");
  }
}

bool KeptProducts::all_given() const {
  return next_ == results_.size() && next_returned_ == returned_.size();
}

void KeptProducts::start_over() {
  next_ = 0;
  next_returned_ = 0;
}

// The versions stay: the keeper is given what a change in place has left, or takes it later.
std::vector<at::Tensor> KeptProducts::hand_over() {
  return std::exchange(results_, {});
}

void KeptProducts::take_back(std::vector<at::Tensor> results) {
  results_ = std::move(results);
}

void KeptProducts::release() {
  results_.clear();
  versions_.clear();
  returned_.clear();
}

std::size_t KeptProducts::held() const {
  std::size_t bytes = held_bytes(results_);
  for (const Form& form : returned_) {
    bytes += held_bytes({form.value});
  }
  return bytes;
}

ProductScope::ProductScope(KeptProducts& products, const void* module, Run run)
    : previous_(std::exchange(t_products, &products)),
      previous_module_(std::exchange(t_module, module)),
      previous_run_(std::exchange(t_run, run)) {
  products.start_over();
  static const bool kept = [] {
    half::set_norm_rows_keeper({&given_norm_rows, &keep_norm_rows});
    return true;
  }();
  static_cast<void>(kept);
}

ProductScope::~ProductScope() {
  t_products = previous_;
  t_module = previous_module_;
  t_run = previous_run_;
}

} // namespace tessera::recompute
