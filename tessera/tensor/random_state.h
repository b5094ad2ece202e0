#pragma once

#include <cstdint>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

namespace tessera {

/// The default CPU generator's state as a value.
/// Not collective. Threads: any; the generator is one for all of them.
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

/// Puts the generator back to what it was, whichever way a scope is left.
class KeepRandomState {
 public:
  KeepRandomState() : state_(RandomState::capture()) {}
  ~KeepRandomState() {
    state_.restore();
  }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  RandomState state_;
};

} // namespace tessera
