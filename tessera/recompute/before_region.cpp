#include "tessera/recompute/before_region.h"

#include <utility>

namespace tessera::recompute {

namespace {

thread_local BeforeRegion* t_before = nullptr;

} // namespace

BeforeRegionScope::BeforeRegionScope(BeforeRegion* before)
    : previous_(std::exchange(t_before, before)) {}

BeforeRegionScope::~BeforeRegionScope() {
  t_before = previous_;
}

BeforeRegion* BeforeRegionScope::current() {
  return t_before;
}

} // namespace tessera::recompute
