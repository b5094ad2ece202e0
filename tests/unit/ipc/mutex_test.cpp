// A lock in memory of several processes.
#include "tessera/ipc/mutex.h"

#include <mutex>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ipc/segment.h"

namespace tessera::ipc {
namespace {

struct Guarded {
  Mutex mutex;
  int first;
  int second;
};

/// Runs `child` in a process of its own, which ends without destructors.
template <typename Child>
pid_t in_child(const Child& child) {
  const pid_t process = ::fork();
  if (process == 0) {
    child();
    ::_exit(0);
  }
  return process;
}

TEST(Mutex, OneProcessAtATime) {
  constexpr int kRounds = 20000;
  const Segment segment = Segment::create(sizeof(Guarded));
  auto* guarded = reinterpret_cast<Guarded*>(segment.data());
  guarded->mutex.make();
  const auto count = [guarded] {
    for (int i = 0; i < kRounds; ++i) {
      const std::lock_guard lock(guarded->mutex);
      // Two additions that a process between them would tear apart.
      guarded->first = guarded->first + 1;
      guarded->second = guarded->first;
    }
  };
  const pid_t process = in_child(count);
  count();
  int status = -1;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(guarded->first, 2 * kRounds);
  EXPECT_EQ(guarded->second, 2 * kRounds);
}

TEST(Mutex, OfAProcessThatEndedIsAnError) {
  const Segment segment = Segment::create(sizeof(Guarded));
  auto* guarded = reinterpret_cast<Guarded*>(segment.data());
  guarded->mutex.make();
  const pid_t process = in_child([guarded] { guarded->mutex.lock(); });
  ASSERT_EQ(::waitpid(process, nullptr, 0), process);
  for (int i = 0; i < 2; ++i) {
    try {
      guarded->mutex.lock();
      FAIL() << "the lock was taken";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("has ended"), std::string::npos) << error.what();
    }
  }
}

} // namespace
} // namespace tessera::ipc
