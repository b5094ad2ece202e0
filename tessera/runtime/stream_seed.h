#pragma once

#include <cstdint>

namespace tessera::runtime {

// Each task of the server has a random stream of its own, whatever order tasks run in; the stream
// follows the task when the baton goes from thread to thread.

/// Returns the seed of the stream of one task (an id that is equal in every run) of a step.
std::uint64_t stream_seed(std::uint64_t seed, std::int64_t step, std::uint64_t task);
/// Returns the task id of the step function on one microbatch.
std::uint64_t step_function_id(int microbatch);

} // namespace tessera::runtime
