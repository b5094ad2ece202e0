#include "tessera/train/engine.h"
#include "tessera/train/forward_only.h"
#include "tessera/train/session.h"
#include "tessera/train/step_call.h"

namespace tessera::train {

std::vector<c10::IValue> run_step(const StepCall& call, const StepFunction& run) {
  const ForwardOnly forward_only(call.forward_only);
  return engine().run_step(call, run);
}

} // namespace tessera::train
