#include "tessera/cost/device_speed.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

using Kind = graph::OperatorWork::Kind;

const std::vector<MeasuredPoint>& products_of(const DeviceSpeed& speed, Precision precision) {
  const auto found = speed.products.find(std::string(text_of(precision)));
  if (found == speed.products.end() || found->second.empty()) {
    throw ConfigError(
        str("the cluster has no products measured in ", text_of(precision), "; measure them"));
  }
  return found->second;
}

// The traced name "aten::_softmax.int" is listed as "softmax.int".
std::string_view short_name(std::string_view name) {
  const auto colons = name.rfind("::");
  name.remove_prefix(colons == std::string_view::npos ? 0 : colons + 2);
  for (const std::string_view prefix : {"_", "native_"}) {
    if (name.substr(0, prefix.size()) == prefix) {
      name.remove_prefix(prefix.size());
    }
  }
  return name;
}

/// Returns the points measured under an operator's name, with its variant or without;
/// nullptr when there are none.
const std::vector<MeasuredPoint>* named(const DeviceSpeed& speed, std::string_view name) {
  name = short_name(name);
  for (const std::string_view one : {name, name.substr(0, name.find('.'))}) {
    const auto found = speed.operators.find(std::string(one));
    if (found != speed.operators.end() && !found->second.empty()) {
      return &found->second;
    }
  }
  return nullptr;
}

double interpolated(
    const std::vector<MeasuredPoint>& points,
    double size,
    double exponent,
    double MeasuredPoint::*seconds) {
  if (size <= points.front().size) {
    return points.front().*seconds;
  }
  const MeasuredPoint& last = points.back();
  if (size >= last.size) {
    return last.*seconds * std::pow(size / last.size, exponent);
  }
  std::size_t i = 1;
  while (points[i].size < size) {
    ++i;
  }
  const MeasuredPoint& a = points[i - 1];
  const MeasuredPoint& b = points[i];
  const double share = std::log(size / a.size) / std::log(b.size / a.size);
  return a.*seconds * std::pow(b.*seconds / (a.*seconds), share);
}

/// Returns the seconds of both passes. A backward that was not measured takes `ratio`
/// times the forward.
PassSeconds
both(const std::vector<MeasuredPoint>& points, double size, double exponent, double ratio) {
  PassSeconds result;
  result.forward = interpolated(points, size, exponent, &MeasuredPoint::seconds);
  const bool measured = std::all_of(points.begin(), points.end(), [](const MeasuredPoint& one) {
    return one.backward_seconds > 0;
  });
  result.backward = measured
                        ? interpolated(points, size, exponent, &MeasuredPoint::backward_seconds)
                        : ratio * result.forward;
  return result;
}

/// Returns whether the backward copies the gradients of the results into one tensor.
bool joins_gradients(std::string_view name) {
  const std::string_view plain = short_name(name);
  const std::string_view base = plain.substr(0, plain.find('.'));
  return base == "unbind" || base == "split" || base == "chunk";
}

PassSeconds
product_seconds(const graph::OperatorWork& work, const DeviceSpeed& speed, Precision precision) {
  const double each = work.rows * work.inner * work.columns;
  if (each <= 0 || work.count <= 0) {
    return {};
  }
  const auto batched = speed.batched_products.find(std::string(text_of(precision)));
  const bool many =
      work.count > 1 && batched != speed.batched_products.end() && !batched->second.empty();
  PassSeconds one =
      both(many ? batched->second : products_of(speed, precision), std::cbrt(each), 3, 2);
  if (work.count == 1) {
    const double weight = work.inner * work.columns;
    for (const MeasuredPoint& point : speed.weights) {
      one.forward += weight * point.seconds / point.size;
      one.backward += weight * point.backward_seconds / point.size;
    }
  }
  // A long and narrow product moves more elements for as many operations as a square one.
  const double elements =
      work.count * (work.rows * work.inner + work.inner * work.columns + work.rows * work.columns);
  // The measured move is a sum of two tensors: it touches three elements for each of its size.
  const double moved = seconds_at(speed.moves, elements / 3, 1);
  return {
      std::max(work.count * one.forward, moved), std::max(work.count * one.backward, 2 * moved)};
}

/// Returns the seconds of an operator and of its backward.
PassSeconds
passes_of(const graph::OperatorWork& work, const DeviceSpeed& speed, Precision precision) {
  const std::vector<MeasuredPoint>* known = named(speed, work.name);
  switch (work.kind) {
    case Kind::kProduct:
      return product_seconds(work, speed, precision);
    case Kind::kMove:
      return both(known ? *known : speed.moves, work.elements, 1, 1);
    case Kind::kFunction:
      return both(known ? *known : speed.functions, work.elements, 1, 1);
    case Kind::kRandom: {
      PassSeconds result = both(known ? *known : speed.random, work.elements, 1, 0);
      if (result.backward == 0) {
        result.backward = seconds_at(speed.moves, work.elements, 1);
      }
      return result;
    }
    case Kind::kView: {
      const std::vector<MeasuredPoint>* view = named(speed, "view");
      PassSeconds result = both(view ? *view : speed.moves, 0, 1, 1);
      if (joins_gradients(work.name)) {
        result.backward += seconds_at(speed.moves, work.elements, 1);
      }
      return result;
    }
    case Kind::kCollective:
      return {}; // LayerTable prices it, since its time depends on where the ranks are
  }
  return {};
}

} // namespace

double seconds_at(const std::vector<MeasuredPoint>& points, double size, double exponent) {
  return interpolated(points, size, exponent, &MeasuredPoint::seconds);
}

PassSeconds
pass_seconds(const graph::OperatorWork& work, const DeviceSpeed& speed, Precision precision) {
  PassSeconds seconds = passes_of(work, speed, precision);
  if (!work.has_adjoint) {
    seconds.backward = 0;
  }
  return seconds;
}

} // namespace tessera::cost
