#include "tessera/runtime/replay/step_factories.h"

#include <utility>

#include "tessera/runtime/replay/recording_exchange.h"
#include "tessera/runtime/replay/replayed_turns.h"
#include "tessera/runtime/replay/static_exchange.h"

namespace tessera::runtime {

StepParts RecordedStepFactory::make(const StepResources& resources) {
  StepParts parts = make_plain_step(resources);
  parts.exchange = std::make_unique<RecordingExchange>(
      std::move(parts.exchange), recording_, resources.context.pp_ranks);
  parts.observer = std::make_unique<TurnRecorder>(recording_);
  return parts;
}

StepParts ReplayedStepFactory::make(const StepResources& resources) {
  const auto packets = std::make_shared<PacketStore>(program_);
  StepParts parts;
  parts.exchange = std::make_unique<StaticExchange>(resources, program_, packets);
  parts.turns = std::make_unique<ReplayedTurns>(resources, program_, packets);
  return parts;
}

} // namespace tessera::runtime
