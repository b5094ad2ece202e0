#include "tessera/optim/adamw_8bit_codec.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/adamw_8bit_state.h"
#include "tessera/state/optimizer_registry.h"

namespace tessera::optim {

// How a run rounds is its own affair: stochastic_rounding stays as the optimizer was made.
template <typename Visitor>
void visit_fields(AdamW8bitOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
}

namespace {

/// What is written and read: f32 in the parameter's shape.
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

const at::Tensor& checked(const at::Tensor& numbers, const char* field) {
  if (!numbers.defined() || numbers.scalar_type() != at::kFloat || !numbers.device().is_cpu()) {
    throw CheckpointError(str(
        "the field \"", field, "\" is not a tensor of f32 on the processor; save with AdamW8bit"));
  }
  return numbers;
}

state::OptimizerCodec adamw_8bit_codec() {
  state::OptimizerCodec codec;
  codec.kind = "AdamW8bit";
  codec.state_type = typeid(AdamW8bitParamState);
  codec.options_type = typeid(AdamW8bitOptions);
  codec.state_has_parameter_shape = true;
  codec.options_are_visited = true;
  codec.state_fields = [](const state::OptimizerCodec::State& state) {
    const auto& own = static_cast<const AdamW8bitParamState&>(state);
    return state::detail::to_fields(
        WholeNumbers{own.step, own.exp_avg.numbers(), own.exp_avg_sq_root.numbers()});
  };
  codec.make_state = [](const state::Fields& fields) {
    WholeNumbers numbers;
    state::detail::from_fields(fields, numbers);
    return std::make_unique<AdamW8bitParamState>(
        numbers.step,
        checked(numbers.exp_avg, "exp_avg"),
        checked(numbers.exp_avg_sq_root, "exp_avg_sq_root"));
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
