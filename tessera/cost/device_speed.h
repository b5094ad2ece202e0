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

/// As probed speeds are listed.
constexpr std::array<std::string_view, 2> choice_names(Precision /*type*/) {
  return {"bf16", "f32"};
}

/// One measured point: an operator on `size` elements (of products: on square
/// matrices of `size` rows) takes `seconds`.
struct MeasuredPoint {
  double size = 0;
  double seconds = 0;
  double backward_seconds = 0; // 0: not measured, follows from the forward
};

/// How fast one device runs operators, measured at several sizes: small ones
/// show what starting an operator costs, large ones what memory gives. Sizes
/// ascend.
struct DeviceSpeed {
  /// By precision, "f32" or "bf16".
  std::map<std::string, std::vector<MeasuredPoint>> products;
  /// One of the products of an operator that makes many small ones; empty: as
  /// `products`.
  std::map<std::string, std::vector<MeasuredPoint>> batched_products;
  std::vector<MeasuredPoint> moves; // sum of two tensors
  std::vector<MeasuredPoint> functions; // GELU
  std::vector<MeasuredPoint> random; // dropout
  /// What a weight adds to a product, of so many elements, when it comes from
  /// memory and not from a cache: in the forward, and for the input's gradient.
  /// Empty: nothing.
  std::vector<MeasuredPoint> weights;
  /// Operators that are known by name, "softmax", "gelu.tanh", "view": those
  /// that their kind's example does not stand for.
  std::map<std::string, std::vector<MeasuredPoint>> operators;

  bool measured() const {
    return !moves.empty();
  }
};

/// Seconds between measured points by interpolation of logarithms; above them
/// in proportion to the size to the power of `exponent`; below them what the
/// smallest takes. `points` is not empty.
double seconds_at(const std::vector<MeasuredPoint>& points, double size, double exponent);

struct PassSeconds {
  double forward = 0;
  double backward = 0;
};

/// Forward and backward of an operator: as measured under its name, else as its
/// kind's example. A product takes what a square one of as many operations
/// takes at the rate of that size, or at least what moving its matrices takes.
///
/// Where backwards were not measured: that of a product is two of its size (for
/// both factors); a random mask is only moved again; a function's derivative
/// costs as much as the function.
/// Throws: ConfigError when products were not measured in this precision.
PassSeconds
pass_seconds(const graph::OperatorWork& work, const DeviceSpeed& speed, Precision precision);

} // namespace tessera::cost
