#include "tessera/autotune/probe/within_layers.h"

#include <algorithm>
#include <cmath>

namespace tessera::autotune {

namespace {

using cost::MeasuredPoint;
using cost::PassSeconds;

struct Paces {
  double launch;
  double products;
  double others;
};

bool possible(double pace) {
  return pace > 0 && std::isfinite(pace);
}

// Solves launch * x + others * y = whole_took - products for both sizes, by Cramer's rule.
Paces solved(const LayerPass& large, const LayerPass& small) {
  const double products = large.products_took / large.products;
  const double rest = large.whole_took - large.products_took;
  const double small_rest = small.whole_took - products * small.products;
  const double determinant = large.launch * small.others - small.launch * large.others;
  const double launch = (rest * small.others - small_rest * large.others) / determinant;
  const double others = (large.launch * small_rest - small.launch * rest) / determinant;
  if (possible(launch) && possible(products) && possible(others)) {
    return {launch, products, others};
  }
  const double all = large.whole_took / (large.launch + large.products + large.others);
  return {all, all, all};
}

void scale(
    std::vector<MeasuredPoint>& points,
    double MeasuredPoint::*seconds,
    double launch_pace,
    double work_pace) {
  const double smallest = points.empty() ? 0 : points.front().*seconds;
  for (MeasuredPoint& point : points) {
    const double launch = std::min(smallest, point.*seconds);
    point.*seconds = launch_pace * launch + work_pace * (point.*seconds - launch);
  }
}

void take_from_memory(std::vector<MeasuredPoint>& points) {
  if (points.empty()) {
    return;
  }
  for (auto seconds : {&MeasuredPoint::seconds, &MeasuredPoint::backward_seconds}) {
    const double launch = points.front().*seconds;
    const double an_element = (points.back().*seconds - launch) / points.back().size;
    for (MeasuredPoint& point : points) {
      point.*seconds = std::max(point.*seconds, launch + an_element * point.size);
    }
  }
}

} // namespace

LayerPace layer_pace(const LayerPasses& large, const LayerPasses& small) {
  const Paces forward = solved(large.forward, small.forward);
  const Paces backward = solved(large.backward, small.backward);
  return {
      .launch = {forward.launch, backward.launch},
      .products = {forward.products, backward.products},
      .others = {forward.others, backward.others}};
}

void scale(cost::DeviceSpeed& speed, const LayerPace& pace) {
  const auto scale_both = [&](std::vector<MeasuredPoint>& points, const PassSeconds& work) {
    scale(points, &MeasuredPoint::seconds, pace.launch.forward, work.forward);
    scale(points, &MeasuredPoint::backward_seconds, pace.launch.backward, work.backward);
  };
  for (auto* by_precision : {&speed.products, &speed.batched_products}) {
    for (auto& [precision, points] : *by_precision) {
      scale_both(points, pace.products);
    }
  }
  for (auto* points : {&speed.moves, &speed.functions, &speed.random}) {
    scale_both(*points, pace.others);
  }
  for (auto& [name, points] : speed.operators) {
    scale_both(points, pace.others);
  }
  for (MeasuredPoint& point : speed.weights) { // a part of products, which nothing launches
    point.seconds *= pace.products.forward;
    point.backward_seconds *= pace.products.backward;
  }
}

void take_from_memory(cost::DeviceSpeed& speed) {
  for (auto* points : {&speed.moves, &speed.functions, &speed.random}) {
    take_from_memory(*points);
  }
  for (auto& [name, points] : speed.operators) {
    take_from_memory(points);
  }
}

} // namespace tessera::autotune
