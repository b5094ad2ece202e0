#pragma once

#include <cstdint>
#include <memory>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

namespace tessera::runtime {

/// The default CPU generator's state as a value. Each task of the server has
/// its own stream, whatever order tasks run in; the stream follows the task
/// when the baton goes from thread to thread.
/// Not collective. Threads: whoever holds the baton.
class RandomState {
 public:
  /// Returns the generator's current state.
  static RandomState capture();
  /// Returns the state of a new stream.
  static RandomState seeded(std::uint64_t seed);
  /// Makes this the generator's state.
  void restore() const;

  /// Returns the state as bytes, for a rank of the same program; equal states have equal bytes.
  at::Tensor to_bytes() const;
  static RandomState from_bytes(const at::Tensor& bytes);

 private:
  // Filling an engine's 624 words takes as long as a small message: once only.
  explicit RandomState(const at::mt19937& engine) : engine_(engine) {}

  at::mt19937 engine_;
  c10::optional<float> normal_float_;
  c10::optional<double> normal_double_;
};

/// Returns the seed of the stream of one task (an id that is equal in every run) of a step.
std::uint64_t stream_seed(std::uint64_t seed, std::int64_t step, std::uint64_t task);
/// Returns the task id of the step function on one microbatch.
std::uint64_t step_function_id(int microbatch);

} // namespace tessera::runtime
