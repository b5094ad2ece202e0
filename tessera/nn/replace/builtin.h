#pragma once

namespace tessera::nn {

/// Fills the look-up table for torch's own classes, at the first call; a
/// program's own rules stay. Threads: any.
void register_builtin_tp_rules();

} // namespace tessera::nn
