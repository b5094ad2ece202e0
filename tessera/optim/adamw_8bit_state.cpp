#include "tessera/optim/adamw_8bit_state.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/state/optimizer_registry.h"

namespace tessera::optim {

namespace {

/// What the codec writes and reads: f32 in the parameter's shape.
struct WholeNumbers {
  std::int64_t step = 0;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq_root;
};

template <typename Visitor>
void visit_fields(WholeNumbers& numbers, Visitor& visit) {
  visit("step", numbers.step);
  visit("exp_avg", numbers.exp_avg);
  visit("exp_avg_sq_root", numbers.exp_avg_sq_root);
}

at::Tensor numbers_of(const Average& average, const ByteValues& values) {
  return average.exact.defined() ? average.exact : average.codes.decode(values);
}

Average average_of(const at::Tensor& numbers, const ByteValues& values) {
  if (numbers.numel() < AdamW8bit::kLeastInBytes) {
    return {.codes = {}, .exact = numbers.contiguous()};
  }
  return {.codes = BlockCodes::encode(numbers, values), .exact = {}};
}

Average zeros(at::IntArrayRef sizes, const ByteValues& values) {
  if (c10::multiply_integers(sizes) < AdamW8bit::kLeastInBytes) {
    return {.codes = {}, .exact = at::zeros(sizes, at::kFloat)};
  }
  return {.codes = BlockCodes::zeros(sizes, values), .exact = {}};
}

at::Tensor checked(const at::Tensor& numbers, const char* field) {
  if (!numbers.defined() || numbers.scalar_type() != at::kFloat || !numbers.device().is_cpu()) {
    throw CheckpointError(str(
        "the field \"", field, "\" is not a tensor of f32 on the processor; save with AdamW8bit"));
  }
  return numbers;
}

} // namespace

// How a run rounds is its own affair: stochastic_rounding stays as the optimizer was made.
template <typename Visitor>
void visit_fields(AdamW8bitOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
}

AdamW8bitParamState first_state(at::IntArrayRef sizes) {
  AdamW8bitParamState state;
  state.exp_avg = zeros(sizes, ByteValues::with_sign());
  state.exp_avg_sq_root = zeros(sizes, ByteValues::without_sign());
  return state;
}

namespace {

state::OptimizerCodec adamw_8bit_codec() {
  state::OptimizerCodec codec;
  codec.kind = "AdamW8bit";
  codec.state_type = typeid(AdamW8bitParamState);
  codec.options_type = typeid(AdamW8bitOptions);
  codec.state_has_parameter_shape = true;
  codec.state_fields = [](const state::OptimizerCodec::State& state) {
    const auto& own = static_cast<const AdamW8bitParamState&>(state);
    return state::detail::to_fields(WholeNumbers{
        own.step,
        numbers_of(own.exp_avg, ByteValues::with_sign()),
        numbers_of(own.exp_avg_sq_root, ByteValues::without_sign())});
  };
  codec.make_state = [](const state::Fields& fields) {
    WholeNumbers numbers;
    state::detail::from_fields(fields, numbers);
    auto state = std::make_unique<AdamW8bitParamState>();
    state->step = numbers.step;
    state->exp_avg = average_of(checked(numbers.exp_avg, "exp_avg"), ByteValues::with_sign());
    state->exp_avg_sq_root =
        average_of(checked(numbers.exp_avg_sq_root, "exp_avg_sq_root"), ByteValues::without_sign());
    return state;
  };
  codec.option_fields = [](const state::OptimizerCodec::Options& options) {
    return state::detail::to_fields(static_cast<const AdamW8bitOptions&>(options));
  };
  codec.set_options = [](state::OptimizerCodec::Options& options, const state::Fields& fields) {
    state::detail::from_fields(fields, static_cast<AdamW8bitOptions&>(options));
  };
  return codec;
}

} // namespace

void register_adamw_8bit_state() {
  static const bool once = [] {
    state::register_optimizer_codec(adamw_8bit_codec());
    return true;
  }();
  static_cast<void>(once);
}

} // namespace tessera::optim
