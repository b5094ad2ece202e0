#pragma once

// AdamW8bit between updates and checkpoints; private to this folder.
namespace tessera::optim {

/// Makes the state of AdamW8bit known to checkpoints, by parameter: `step`, and in the parameter's
/// shape and f32 `exp_avg` and `exp_avg_sq_root`. Harmless to repeat. Threads: any.
void register_adamw_8bit_state();

} // namespace tessera::optim
