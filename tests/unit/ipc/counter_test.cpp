#include "tessera/ipc/counter.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace tessera::ipc {
namespace {

using std::chrono::milliseconds;

TEST(Counter, ComparesModulo32Bits) {
  EXPECT_TRUE(Counter::is_at_or_after(5, 5));
  EXPECT_TRUE(Counter::is_at_or_after(2, 0xFFFFFFFE));
  EXPECT_FALSE(Counter::is_at_or_after(0xFFFFFFFE, 2));
}

TEST(Counter, AWaitEndsWhenItIsPosted) {
  Counter counter;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    counter.post(1);
    counter.raise();
  });
  EXPECT_TRUE(counter.wait_until(2, Deadline(milliseconds(60000)), [] {}));
  other.join();
  EXPECT_TRUE(counter.spin_until(2));
}

TEST(Counter, AWaitEndsByItsDeadlineOrItsCheck) {
  Counter counter;
  EXPECT_FALSE(counter.wait_until(1, Deadline(milliseconds(10)), [] {}));
  EXPECT_FALSE(counter.spin_until(1));
  const auto fail = [] { throw std::runtime_error("a peer has died"); };
  EXPECT_THROW(counter.wait_until(1, Deadline(milliseconds(60000)), fail), std::runtime_error);
}

} // namespace
} // namespace tessera::ipc
