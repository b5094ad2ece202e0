#pragma once

namespace tessera::nn {

/// Fills the look-up table for torch's own classes. Threads: once, by the
/// table.
void register_builtin_tp_rules();

} // namespace tessera::nn
