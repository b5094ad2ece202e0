#include "tessera/train/forward_only.h"

#include <atomic>

namespace tessera::train {

namespace {

// One step runs at a time; its function may run on a thread of the server.
std::atomic<int> g_running{0};

} // namespace

ForwardOnly::ForwardOnly(bool on) : on_(on) {
  if (on_) {
    ++g_running;
    no_grad_.emplace();
  }
}

ForwardOnly::~ForwardOnly() {
  if (on_) {
    --g_running;
  }
}

bool ForwardOnly::running() {
  return g_running > 0;
}

} // namespace tessera::train
