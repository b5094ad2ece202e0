#include "tessera/train/engine.h"
#include "tessera/train/session.h"
#include "tessera/train/step_call.h"

namespace tessera::train {

std::vector<c10::IValue> run_step(const StepCall& call, const StepFunction& run) {
  return engine().run_step(call, run);
}

} // namespace tessera::train
