#include "tessera/tracer/gradient_lives.h"

#include <algorithm>

namespace tessera::tracer {

GradientLives::Id GradientLives::make(std::size_t by, double bytes) {
  const Id id = lives_.size();
  lives_.push_back({by, by, bytes, id});
  return id;
}

GradientLives::Id GradientLives::whole(Id tensor) const {
  while (lives_[tensor].part_of != tensor) {
    tensor = lives_[tensor].part_of;
  }
  return tensor;
}

void GradientLives::take(Id tensor, std::size_t by) {
  Life& life = lives_[whole(tensor)];
  life.last = std::max(life.last, by);
}

void GradientLives::unite(Id one, Id other) {
  const Id to = whole(one);
  const Id from = whole(other);
  if (to == from) {
    return;
  }
  lives_[from].part_of = to;
  Life& life = lives_[to];
  life.first = std::min(life.first, lives_[from].first);
  life.last = std::max(life.last, lives_[from].last);
  life.bytes = std::max(life.bytes, lives_[from].bytes);
}

void GradientLives::take_parameter(
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

void GradientLives::write(graph::ForwardWork& work) const {
  std::vector<double> change(work.size() + 1, 0);
  const auto stands = [&](std::size_t first, std::size_t last, double bytes) {
    change[std::min(first, work.size())] += bytes;
    change[std::min(last + 1, work.size())] -= bytes;
  };
  for (Id id = 0; id < lives_.size(); ++id) {
    if (lives_[id].part_of == id) {
      stands(lives_[id].first, lives_[id].last, lives_[id].bytes);
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
