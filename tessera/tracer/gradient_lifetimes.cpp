#include "tessera/tracer/gradient_lifetimes.h"

#include <algorithm>

namespace tessera::tracer {

GradientLifetimes::Id GradientLifetimes::make(std::size_t by, double bytes) {
  const Id id = lifetimes_.size();
  lifetimes_.push_back({by, by, bytes, id});
  return id;
}

GradientLifetimes::Id GradientLifetimes::whole(Id tensor) const {
  while (lifetimes_[tensor].part_of != tensor) {
    tensor = lifetimes_[tensor].part_of;
  }
  return tensor;
}

void GradientLifetimes::take(Id tensor, std::size_t by) {
  Lifetime& life = lifetimes_[whole(tensor)];
  life.last = std::max(life.last, by);
}

void GradientLifetimes::unite(Id one, Id other) {
  const Id to = whole(one);
  const Id from = whole(other);
  if (to == from) {
    return;
  }
  lifetimes_[from].part_of = to;
  Lifetime& life = lifetimes_[to];
  life.first = std::min(life.first, lifetimes_[from].first);
  life.last = std::max(life.last, lifetimes_[from].last);
  life.bytes = std::max(life.bytes, lifetimes_[from].bytes);
}

void GradientLifetimes::take_parameter(
    const void* parameter,
    double bytes,
    std::size_t by,
    std::size_t use) {
  Uses& uses = parameters_[parameter];
  uses.bytes = bytes;
  if (uses.by.empty() || uses.last_use != use) {
    uses.by.push_back(by);
    uses.last_use = use;
  }
}

void GradientLifetimes::write(graph::ForwardWork& work) const {
  std::vector<double> change(work.size() + 1, 0);
  const auto stands = [&](std::size_t first, std::size_t last, double bytes) {
    change[std::min(first, work.size())] += bytes;
    change[std::min(last + 1, work.size())] -= bytes;
  };
  for (Id id = 0; id < lifetimes_.size(); ++id) {
    if (lifetimes_[id].part_of == id) {
      stands(lifetimes_[id].first, lifetimes_[id].last, lifetimes_[id].bytes);
    }
  }
  for (const auto& [parameter, uses] : parameters_) {
    if (uses.by.size() < 2) {
      continue;
    }
    stands(uses.by.front(), uses.by.back(), uses.bytes);
    for (std::size_t i = 0; i + 1 < uses.by.size(); ++i) {
      stands(uses.by[i], uses.by[i], 2 * uses.bytes); // its own part, and the sum
    }
  }
  double bytes = 0;
  for (std::size_t i = 0; i < work.size(); ++i) {
    bytes += change[i];
    work[i].gradient_bytes = bytes;
  }
}

} // namespace tessera::tracer
