#pragma once

#include "tessera/config/launcher.h"

namespace tessera::config {

/// Environment variables of jobs that were written for the documented library. They say how
/// activations travel between ranks of one machine.
inline constexpr const char* kDisableTransferVariable = "SMP_DISABLE_D2D";
inline constexpr const char* kTransferBufferVariable = "SMP_D2D_GPU_BUFFER_SIZE_BYTES";

/// Returns `given` with what both variables say in the place of its own keys: the environment goes
/// before every other place of a configuration. A null pointer or an empty text says nothing.
///
/// `disable` is 0, false, 1 or true; 1 turns direct transfers off: same_node_backend "mpi".
/// `buffer_bytes` is transport_buffer_bytes; less than that key's smallest value, as in jobs that
/// need no buffer and write 1, is the smallest.
/// Threads: any thread.
/// Throws: ConfigError naming the variable and what was found.
/// Source: the library's documentation, environment variables.
Launched
with_transfer_variables(const Config& given, const char* disable, const char* buffer_bytes);

} // namespace tessera::config
