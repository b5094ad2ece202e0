#include "tessera/recompute/keeper.h"

#include <utility>

namespace tessera::recompute {

namespace {

thread_local const KeeperScope* t_scope = nullptr;

} // namespace

KeeperScope::KeeperScope(Keeper* keeper, int microbatch)
    : previous_(std::exchange(t_scope, keeper == nullptr ? nullptr : this)),
      keeper_(keeper),
      microbatch_(microbatch) {}

KeeperScope::~KeeperScope() {
  t_scope = previous_;
}

const KeeperScope* KeeperScope::current() {
  return t_scope;
}

} // namespace tessera::recompute
