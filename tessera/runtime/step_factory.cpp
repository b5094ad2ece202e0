#include "tessera/runtime/step_factory.h"

#include "tessera/runtime/dynamic_turns.h"
#include "tessera/runtime/ordered_turns.h"
#include "tessera/runtime/request_exchange.h"

namespace tessera::runtime {

StepParts make_plain_step(const StepResources& resources) {
  StepParts parts;
  parts.exchange = std::make_unique<RequestExchange>(
      resources.context, resources.control, resources.script_stream);
  const OrderChannel* order = resources.context.order;
  if (order == nullptr) {
    parts.turns = std::make_unique<DynamicTurns>(resources);
  } else if (order->leads()) {
    parts.turns = std::make_unique<LeaderTurns>(resources);
  } else {
    parts.turns = std::make_unique<FollowerTurns>(resources);
  }
  return parts;
}

} // namespace tessera::runtime
