#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::optim {

/// f32 copies of 16-bit parameters. An optimizer steps on the copies, so that
/// updates smaller than a parameter's last bit are not lost.
/// Not collective. Threads: step thread only.
/// Source: Micikevicius et al. 2018, section 3.1.
class MasterWeights {
 public:
  /// Returns the tensor to optimize: a new master of a 16-bit parameter, or the
  /// parameter itself.
  at::Tensor add(const at::Tensor& parameter);

  /// The same for a parameter that was added; itself for others.
  at::Tensor of(const at::Tensor& parameter) const;
  /// Returns whether `add` made this tensor.
  bool is_master(const at::Tensor& tensor) const;

  /// Where somebody else than `write_back` has changed a parameter (a state was
  /// loaded, weights were clamped), its master takes the new values.
  void follow_parameters();

  /// Before the optimizer's step: each master's gradient is its parameter's
  /// divided by `scale`, but for those that `keep_gradients` keeps.
  void take_gradients(double scale = 1);
  /// The masters' gradients were changed as their parameters' were, without the
  /// rounding to 16 bits: they stay until something else changes a parameter's.
  void keep_gradients();
  /// After it: each parameter is its master's rounded value. The masters'
  /// gradients are freed.
  void write_back();

 private:
  using WeakGradient = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Pair {
    at::Tensor parameter;
    at::Tensor master;
    std::int64_t written_version = 0; // of the parameter, when it was the master's rounded value
    // The parameter's gradient that the master's was kept for. A weak pointer, because a gradient
    // that was freed would leave its address to another.
    std::optional<WeakGradient> kept = std::nullopt;
    std::int64_t kept_version = 0;
  };
  std::vector<Pair> pairs_;
};

} // namespace tessera::optim
