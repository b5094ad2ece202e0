#pragma once

#include <cstdint>
#include <memory>

#include <ATen/CPUGeneratorImpl.h>

namespace tessera::runtime {

/// The default CPU generator's state as a value. Each task of the server has
/// its own stream, whatever order tasks run in; the stream follows the task
/// when the baton goes from thread to thread.
/// Not collective. Threads: whoever holds the baton.
class RandomState {
 public:
  /// The generator's state now.
  static RandomState capture();
  /// A fresh stream.
  static RandomState seeded(std::uint64_t seed);
  /// Makes this the generator's state.
  void restore() const;

 private:
  at::mt19937 engine_;
  c10::optional<float> normal_float_;
  c10::optional<double> normal_double_;
};

} // namespace tessera::runtime
