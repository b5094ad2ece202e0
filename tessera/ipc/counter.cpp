#include "tessera/ipc/counter.h"

#include <climits>
#include <ctime>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

#include <linux/futex.h>

namespace tessera::ipc {

namespace {

constexpr std::chrono::microseconds kSpin{10};

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// FUTEX_PRIVATE is left out because the word may lie in memory that processes share.
void futex(
    std::atomic<std::uint32_t>& word,
    int operation,
    std::uint32_t number,
    const timespec* timeout) {
  ::syscall(
      SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, number, timeout, nullptr, 0);
}

} // namespace

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Counter::sleep_while(std::uint32_t seen, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec limit{};
  limit.tv_sec = seconds.count();
  limit.tv_nsec = (timeout - seconds).count();
  // The addition and the load after it are sequentially consistent, as are the store and the load
  // of `post`: either this thread sees the new value, or the poster sees this sleeper.
  sleepers.fetch_add(1);
  if (value.load() == seen) {
    futex(value, FUTEX_WAIT, seen, &limit);
  }
  sleepers.fetch_sub(1);
}

bool Counter::spin_until(std::uint32_t target) const {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 16; ++i) {
      if (has_reached(target)) {
        return true;
      }
      relax();
    }
    // The peer may be waiting for this very core.
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() - start < kSpin);
  return false;
}

void Counter::wake_sleepers() {
  if (sleepers.load() != 0) {
    futex(value, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

} // namespace tessera::ipc
