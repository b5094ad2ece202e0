#include "tessera/optim/normwise_codec.h"

#include "tessera/optim/lamb.h"
#include "tessera/optim/novograd.h"
#include "tessera/state/optimizer_registry.h"

namespace tessera::optim {

template <typename Visitor>
void visit_fields(LambOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("bias_correction", options.bias_correction());
  visit("grad_averaging", options.grad_averaging());
  visit("max_grad_norm", options.max_grad_norm());
  visit("use_nvlamb", options.use_nvlamb());
}

template <typename Visitor>
void visit_fields(LambParamState& state, Visitor& visit) {
  visit("step", state.step);
  visit("exp_avg", state.exp_avg);
  visit("exp_avg_sq", state.exp_avg_sq);
}

template <typename Visitor>
void visit_fields(NovoGradOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("bias_correction", options.bias_correction());
  visit("reg_inside_moment", options.reg_inside_moment());
  visit("grad_averaging", options.grad_averaging());
  visit("init_zero", options.init_zero());
}

template <typename Visitor>
void visit_fields(NovoGradParamState& state, Visitor& visit) {
  visit("step", state.step);
  visit("exp_avg", state.exp_avg);
  visit("norm", state.norm);
}

void register_normwise_states() {
  static const bool once = [] {
    state::register_optimizer_state<LambParamState, LambOptions>("Lamb");
    state::register_optimizer_state<NovoGradParamState, NovoGradOptions>("NovoGrad");
    return true;
  }();
  static_cast<void>(once);
}

} // namespace tessera::optim
