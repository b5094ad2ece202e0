#include "tessera/autograd/addition_hook.h"

#include "tessera/autograd/backward_pass.h"

namespace tessera {

torch::autograd::variable_list AdditionHook::operator()(
    const torch::autograd::variable_list& outputs,
    const torch::autograd::variable_list& /*inputs*/) {
  // A pass that defers or orders additions reports each of them itself.
  const BackwardPass* pass = BackwardPass::current();
  if (pass == nullptr || !(pass->orders(accumulator_) || pass->awaits(accumulator_))) {
    added_();
  }
  return outputs;
}

void for_each_addition_hook(
    const torch::autograd::Node& accumulator,
    const std::function<void(const AdditionHook&)>& visit) {
  for (const auto& hook : accumulator.post_hooks()) {
    if (const auto* ours = dynamic_cast<const AdditionHook*>(hook.get())) {
      visit(*ours);
    }
  }
}

void tell_added(const torch::autograd::Node& accumulator) {
  for_each_addition_hook(accumulator, [](const AdditionHook& hook) { hook.added(); });
}

} // namespace tessera
