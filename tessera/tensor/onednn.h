#pragma once

namespace tessera {

/// Keeps oneDNN from its AMX kernels where they are known to end the process: those of the oneDNN
/// that libtorch 1.x uses run tile instructions without a tile configuration (SIGILL in a bf16
/// product). It sets ONEDNN_MAX_CPU_ISA, unless the user has, to the best set below AMX.
/// Call it before the first bf16 operator. Not collective. Threads: before others are started.
void avoid_faulty_amx();

} // namespace tessera
