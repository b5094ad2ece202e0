#include "tessera/runtime/step_state.h"

#include <utility>

#include "tessera/runtime/autograd_modes.h"

namespace tessera::runtime {

StepState::StepState(
    const ServerContext& context,
    const StepWork& work,
    StepControl& control,
    BufferOrder* buffer_order)
    : work(work), tasks(work.microbatches), results(work.microbatches) {
  capture_modes(caller_modes);
  // Tasks draw from streams of their own, and the script's goes on untouched; or all draw from the
  // script's, and its end replaces what is kept here.
  if (context.random_streams) {
    random_after = RandomState::capture();
    if (work.script_stream) {
      script_stream = std::make_unique<ScriptStream>();
    }
  }
  const StepResources resources{context, work, tasks, control, script_stream.get(), buffer_order};
  StepParts parts =
      work.factory != nullptr ? work.factory->make(resources) : make_plain_step(resources);
  exchange = std::move(parts.exchange);
  turns = std::move(parts.turns);
  observer = std::move(parts.observer);
}

} // namespace tessera::runtime
