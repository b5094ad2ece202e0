#pragma once

#include <cstdint>
#include <optional>

namespace tessera::cli {

/// Counts the bytes of CPU tensors that this process makes from here on, as its heap holds them,
/// and those of tensors in memory that the library maps (MappedBytes): blocks of a mesh, and a
/// rank's parts of divided parameters. Not counted are parameters gathered from other hosts. It
/// costs an addition for each tensor. Threads: before others make tensors.
void count_tensor_bytes();

/// Returns the most bytes that the counted tensors held since the last call, which begins anew with
/// those of now; nullopt where nothing counts, as on a system whose heap does not say what it
/// holds. Threads: any.
std::optional<std::int64_t> take_tensor_peak();

} // namespace tessera::cli
