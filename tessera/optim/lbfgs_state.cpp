#include "tessera/optim/lbfgs_state.h"

#include <string>

#include "tessera/base/error.h"
#include "tessera/state/optimizer_registry.h"

namespace tessera::optim {

template <typename Visitor>
void visit_fields(LBFGSOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("max_iter", options.max_iter());
  visit("max_eval", options.max_eval());
  visit("tolerance_grad", options.tolerance_grad());
  visit("tolerance_change", options.tolerance_change());
  visit("history_size", options.history_size());
  visit("line_search_fn", options.line_search_fn());
}

template <typename Visitor>
void visit_fields(LBFGSParamState& state, Visitor& visit) {
  visit("n_iter", state.n_iter);
  visit("func_evals", state.func_evals);
  visit("t", state.t);
  visit("h_diag", state.h_diag);
  visit("d", state.d);
  visit("prev_grad", state.prev_grad);
}

} // namespace tessera::optim

namespace tessera::optim {

namespace {

using state::Fields;

state::OptimizerCodec lbfgs_codec() {
  auto codec = state::make_optimizer_codec<LBFGSParamState, LBFGSOptions>("LBFGS", true);
  const auto fixed_fields = codec.state_fields;
  const auto from_fixed_fields = codec.make_state;
  codec.state_fields = [fixed_fields](const state::OptimizerCodec::State& state) {
    Fields fields = fixed_fields(state);
    const auto& own = static_cast<const LBFGSParamState&>(state);
    for (std::size_t i = 0; i < own.ro.size(); ++i) {
      fields[str("old_dirs_", i)] = own.old_dirs[i];
      fields[str("old_stps_", i)] = own.old_stps[i];
      fields[str("ro_", i)] = own.ro[i];
    }
    return fields;
  };
  codec.make_state = [from_fixed_fields](const Fields& fields) {
    Fields fixed = fields;
    LBFGSParamState history;
    for (std::size_t i = 0; fixed.contains(str("ro_", i)); ++i) {
      const auto take = [&](const std::string& name) {
        auto entry = fixed.extract(name);
        if (entry.empty()) {
          throw CheckpointError(str("the field \"", name, "\" is missing"));
        }
        return entry.mapped();
      };
      history.ro.push_back(take(str("ro_", i)).toDouble());
      history.old_dirs.push_back(take(str("old_dirs_", i)).toTensor());
      history.old_stps.push_back(take(str("old_stps_", i)).toTensor());
    }
    auto state = from_fixed_fields(fixed);
    auto& own = static_cast<LBFGSParamState&>(*state);
    own.ro = std::move(history.ro);
    own.old_dirs = std::move(history.old_dirs);
    own.old_stps = std::move(history.old_stps);
    return state;
  };
  return codec;
}

} // namespace

void register_lbfgs_state() {
  static const bool once = [] {
    state::register_optimizer_codec(lbfgs_codec());
    return true;
  }();
  static_cast<void>(once);
}

std::unique_ptr<torch::optim::Optimizer> with_own_lbfgs(
    std::unique_ptr<torch::optim::Optimizer> optimizer) {
  auto* torchs = dynamic_cast<torch::optim::LBFGS*>(optimizer.get());
  if (torchs == nullptr) {
    return optimizer;
  }
  if (!torchs->state().empty()) {
    throw ConfigError(
        "a torch::optim::LBFGS was given that has made steps already, and its history is one "
        "vector over all parameters of a process; give a fresh one");
  }
  auto& group = torchs->param_groups().at(0);
  return std::make_unique<LBFGS>(
      group.params(), static_cast<const torch::optim::LBFGSOptions&>(group.options()));
}

} // namespace tessera::optim
