#include "tessera/comm/caller.h"

namespace tessera::comm {

namespace {

thread_local Caller t_caller;

} // namespace

const Caller& current_caller() {
  return t_caller;
}

CallerScope::CallerScope(const Caller& caller) : previous_(t_caller) {
  t_caller = caller;
}

CallerScope::~CallerScope() {
  t_caller = previous_;
}

} // namespace tessera::comm
