#include "tessera/cost/device_speed.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

using Kind = graph::OperatorWork::Kind;

const std::vector<MeasuredPoint>& products_of(
    const DeviceSpeed& speed,
    const std::string& precision) {
  const auto found = speed.products.find(precision);
  if (found == speed.products.end() || found->second.empty()) {
    throw ConfigError(
        str("the cluster file has no products in ",
            precision,
            "; measure them with tessera probe"));
  }
  return found->second;
}

double product_seconds(
    const graph::OperatorWork& work,
    const DeviceSpeed& speed,
    const std::string& precision) {
  const double each = work.rows * work.inner * work.columns;
  if (each <= 0 || work.count <= 0) {
    return 0;
  }
  const double seconds =
      work.count *
      seconds_at(products_of(speed, precision), std::cbrt(each), 3);
  // A long and narrow product reads and writes more for its operations.
  const double elements =
      work.count * (work.rows * work.inner + work.inner * work.columns +
                    work.rows * work.columns);
  // A measured move touches three elements for each of its size.
  return std::max(seconds, seconds_at(speed.moves, elements / 3, 1));
}

} // namespace

double seconds_at(
    const std::vector<MeasuredPoint>& points,
    double size,
    double exponent) {
  if (size <= points.front().size) {
    return points.front().seconds;
  }
  const MeasuredPoint& last = points.back();
  if (size >= last.size) {
    return last.seconds * std::pow(size / last.size, exponent);
  }
  std::size_t i = 1;
  while (points[i].size < size) {
    ++i;
  }
  const MeasuredPoint& a = points[i - 1];
  const MeasuredPoint& b = points[i];
  const double share = std::log(size / a.size) / std::log(b.size / a.size);
  return a.seconds * std::pow(b.seconds / a.seconds, share);
}

double operator_seconds(
    const graph::OperatorWork& work,
    const DeviceSpeed& speed,
    const std::string& precision) {
  switch (work.kind) {
    case Kind::kProduct:
      return product_seconds(work, speed, precision);
    case Kind::kMove:
      return seconds_at(speed.moves, work.elements, 1);
    case Kind::kFunction:
      return seconds_at(speed.functions, work.elements, 1);
    case Kind::kRandom:
      return seconds_at(speed.random, work.elements, 1);
    case Kind::kView:
      return speed.moves.front().seconds;
    case Kind::kCollective:
      return 0; // depends on where its ranks are
  }
  return 0;
}

PassSeconds pass_seconds(
    const graph::OperatorWork& work,
    const DeviceSpeed& speed,
    const std::string& precision) {
  PassSeconds result;
  result.forward = operator_seconds(work, speed, precision);
  result.backward = result.forward;
  if (work.kind == Kind::kProduct) {
    result.backward = 2 * result.forward;
  } else if (work.kind == Kind::kRandom) {
    result.backward = seconds_at(speed.moves, work.elements, 1);
  }
  return result;
}

} // namespace tessera::cost
