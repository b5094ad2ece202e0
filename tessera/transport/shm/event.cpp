#include "tessera/transport/shm/event.h"

#include <algorithm>

#include "tessera/comm/shared_memory/segment.h"

namespace tessera::transport::shm {

namespace {

constexpr std::chrono::nanoseconds kSpinMin{1000};
constexpr std::chrono::nanoseconds kSpinMax{32000};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace

void notify(Event& event) {
  // Both sequentially consistent: either the sleeper's compare sees the new
  // count, or this load sees the sleeper.
  event.count.fetch_add(1);
  if (event.sleepers.load() != 0) {
    comm::shm::wake_all(event.count);
  }
}

bool Waiter::spin(const Event& event, std::uint32_t seen) {
  const auto end = std::chrono::steady_clock::now() + spin_;
  do {
    for (int i = 0; i < 16; ++i) {
      if (event.count.load() != seen) {
        spin_ = std::min(spin_ * 2, kSpinMax);
        return true;
      }
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  spin_ = std::max(spin_ / 2, kSpinMin);
  return false;
}

void Waiter::wait(Event& event, std::uint32_t seen, std::chrono::nanoseconds timeout) {
  if (may_spin_ && spin(event, seen)) {
    return;
  }
  event.sleepers.fetch_add(1);
  if (event.count.load() == seen) {
    comm::shm::wait_while_equal(event.count, seen, timeout);
  }
  event.sleepers.fetch_sub(1);
}

} // namespace tessera::transport::shm
