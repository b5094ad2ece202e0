#include "tessera/diagnostics/process_watch.h"

#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <poll.h>

namespace tessera::diagnostics {
namespace {

TEST(ProcessWatch, SeesTheEndOfAProcessThatNobodyHasWaitedFor) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) {
      ::pause();
    }
  }
  const ProcessWatch watch(child);
  EXPECT_FALSE(watch.ended());
  ::kill(child, SIGKILL);
  for (int i = 0; i < 5000 && !watch.ended(); ++i) {
    ::poll(nullptr, 0, 2);
  }
  EXPECT_TRUE(watch.ended()); // a zombie
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(watch.ended());
}

} // namespace
} // namespace tessera::diagnostics
