#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/choice.h"
#include "tessera/graph/operator_work.h"

namespace tessera::cost {

/// The type of parameters and activations: 16 bits, or f32.
enum class Precision { kHalf, kFull };

/// The names under which DeviceSpeed lists products.
constexpr std::array<std::string_view, 2> choice_names(Precision /*type*/) {
  return {"bf16", "f32"};
}

/// One measured point: an operator on `size` elements (a product of square matrices of
/// `size` rows) takes `seconds`.
struct MeasuredPoint {
  double size = 0;
  double seconds = 0;
  double backward_seconds = 0; // 0: not measured; pass_seconds derives it from the forward
};

/// How fast one device runs operators, measured at several sizes in ascending order:
/// small ones show what launching an operator costs, large ones the bandwidth of
/// memory. Each kind of operator has an example that was measured.
struct DeviceSpeed {
  /// By precision, "f32" or "bf16".
  std::map<std::string, std::vector<MeasuredPoint>> products;
  /// Seconds of one product of an operator that runs many small ones; empty: as
  /// `products`.
  std::map<std::string, std::vector<MeasuredPoint>> batched_products;
  std::vector<MeasuredPoint> moves; // sum of two tensors
  std::vector<MeasuredPoint> functions; // GELU
  std::vector<MeasuredPoint> random; // dropout
  /// What a weight of so many elements adds to a product when it comes from memory
  /// and not from a cache: to the forward, and to the gradient of the input. Empty:
  /// nothing.
  std::vector<MeasuredPoint> weights;
  /// Operators by name ("softmax", "gelu.tanh", "view") whose speed differs from that
  /// of their kind's example.
  std::map<std::string, std::vector<MeasuredPoint>> operators;

  /// Whether any speed is known.
  bool measured() const {
    return !moves.empty();
  }
};

/// Returns the seconds at `size`: between measured points by interpolation of
/// logarithms, above them in proportion to size^exponent, below them as at the
/// smallest. `points` must not be empty.
double seconds_at(const std::vector<MeasuredPoint>& points, double size, double exponent);

/// Seconds of a forward and of its backward.
struct PassSeconds {
  double forward = 0;
  double backward = 0;
};

/// Returns the seconds of an operator: as measured under its name, else as the example
/// of its kind. A product takes as long as a square product of as many operations,
/// and at least as long as moving its matrices. Collectives take 0 here, because their
/// time depends on where the ranks are.
///
/// A backward that was not measured is derived: that of a product is two products of
/// its size, one for each factor; that of a random mask moves the elements once more;
/// that of a function takes as long as the function.
/// Throws: ConfigError when products were not measured in this precision.
PassSeconds
pass_seconds(const graph::OperatorWork& work, const DeviceSpeed& speed, Precision precision);

} // namespace tessera::cost
