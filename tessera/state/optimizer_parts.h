#pragma once

#include "tessera/state/optimizer_state.h"

// An optimizer's state on its way between ranks. Private to the library.
namespace tessera::state {

c10::IValue pack_state(const OptimizerState& state);
OptimizerState unpack_state(const c10::IValue& value);

/// Adds another rank's parameters, group by group.
void merge_into(OptimizerState& whole, OptimizerState part);

} // namespace tessera::state
