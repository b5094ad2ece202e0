#pragma once

#include <memory>

#include "tessera/runtime/exchange.h"
#include "tessera/runtime/step_resources.h"
#include "tessera/runtime/turn_source.h"

namespace tessera::runtime {

/// The parts that a step is run with.
struct StepParts {
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<TurnSource> turns;
  std::unique_ptr<TurnObserver> observer; // nullptr: nobody sees the turns
};

/// Makes the parts of each step. StaticMode has two of them (replay/static_mode.h).
/// Not collective. Threads: step thread only.
class StepFactory {
 public:
  virtual ~StepFactory() = default;
  virtual StepParts make(const StepResources& resources) = 0;
};

/// Makes steps of requests and responses, in an order of this rank's own or, where the context has
/// an OrderChannel, in that of its leader.
StepParts make_plain_step(const StepResources& resources);

} // namespace tessera::runtime
