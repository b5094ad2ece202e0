#pragma once

#include <string>
#include <vector>

#include <torch/torch.h>

namespace tessera::equivalence {

/// What a comparison allows.
struct Tolerances {
  double relative = 1e-5; // of a tensor's norm
  /// Times the norm of all gradients: below it a gradient is a sum of terms that cancel, and its
  /// digits are those of rounding.
  double gradient_noise = 3e-7;
  /// A loss is a mean of terms of about 1 that can cancel: a few last bits of such a term.
  double loss_noise = 1e-6;
};

/// Those of numbers that are computed in `type` with f32 masters: f16 and bf16 numbers that are
/// added in another order differ by some last bits (2^-11, 2^-8).
Tolerances tolerances_of(at::ScalarType type);

/// Adds up what differs on this rank.
class Comparison {
 public:
  explicit Comparison(at::ScalarType type) : allowed(tolerances_of(type)) {}

  void same(
      const torch::Tensor& got,
      const torch::Tensor& wanted,
      const std::string& what,
      double noise = 0);
  void same(double got, double wanted, const std::string& what);
  void add(std::string difference);

  Tolerances allowed;
  /// One a line; empty when all is equal.
  std::vector<std::string> differences;
  /// The largest error of all, as if the tolerance were `allowed.relative` everywhere.
  double worst = 0;
  /// Whether all that differ are numbers.
  bool only_numbers = true;
};

} // namespace tessera::equivalence
