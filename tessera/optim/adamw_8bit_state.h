#pragma once

#include "tessera/optim/adamw_8bit.h"

// AdamW8bit between updates and checkpoints; private to this folder.
namespace tessera::optim {

/// The state before a parameter's first update.
AdamW8bitParamState first_state(at::IntArrayRef sizes);

/// Makes the state of AdamW8bit known to checkpoints, by parameter: `step`, and in the parameter's
/// shape and f32 `exp_avg` and `exp_avg_sq_root`. Harmless to repeat. Threads: any.
void register_adamw_8bit_state();

} // namespace tessera::optim
