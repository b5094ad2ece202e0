#include "tessera/transport/shm/waiter.h"

#include <algorithm>

namespace tessera::transport::shm {

namespace {

constexpr std::chrono::nanoseconds kSpinMin{1000};
constexpr std::chrono::nanoseconds kSpinMax{32000};

} // namespace

bool Waiter::spin(const ipc::Counter& counter, std::uint32_t seen) {
  const auto end = std::chrono::steady_clock::now() + spin_;
  do {
    for (int i = 0; i < 16; ++i) {
      if (counter.value.load() != seen) {
        spin_ = std::min(spin_ * 2, kSpinMax);
        return true;
      }
      ipc::relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  spin_ = std::max(spin_ / 2, kSpinMin);
  return false;
}

void Waiter::wait(ipc::Counter& counter, std::uint32_t seen, std::chrono::nanoseconds timeout) {
  if (may_spin_ && spin(counter, seen)) {
    return;
  }
  counter.sleep_while(seen, timeout);
}

} // namespace tessera::transport::shm
