#include "tessera/base/child_process.h"

#include <chrono>
#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

TEST(ChildProcess, AnswersThroughItsInputAndOutput) {
  ChildProcess child({"cat"}, "");
  std::string answer(5, ' ');
  ASSERT_TRUE(child.write("hello", 5));
  ASSERT_TRUE(child.read(answer.data(), answer.size()));
  EXPECT_EQ(answer, "hello");
  ASSERT_TRUE(child.write(" and more", 9));
  EXPECT_EQ(child.read_to_end(), " and more");
  EXPECT_EQ(child.wait(), 0);
}

TEST(ChildProcess, EndsWithTheStatusThatAShellSays) {
  EXPECT_EQ(ChildProcess(shell("exit 7"), "").wait(), 7);
  EXPECT_EQ(ChildProcess(shell("kill -9 $$"), "").wait(), 137);
}

TEST(ChildProcess, SaysWhatCannotBeRun) {
  try {
    ChildProcess child({"no-such-program-here"}, "; install it");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "cannot run \"no-such-program-here\" (No such file or directory); install it");
  }
}

TEST(ChildProcess, EndsWithItsObject) {
  const auto start = std::chrono::steady_clock::now();
  { const ChildProcess child({"sleep", "60"}, ""); }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// What the system says of a child: its group, and the signals that it blocks.
TEST(StartChild, GivesGroupAndBlockedSignals) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  const StartedChild child = start_child(
      {.words =
           {"sed",
            "-n",
            "s/^NSpgid:[[:space:]]*//p; s/^SigBlk:[[:space:]]*//p",
            "/proc/self/status"},
       .output = ends[1],
       .guarded = true,
       .blocked = &blocked});
  close(ends[1]);
  ASSERT_EQ(child.error, 0);
  std::string printed;
  char letter = 0;
  while (read(ends[0], &letter, 1) == 1) {
    printed += letter;
  }
  close(ends[0]);
  int status = 0;
  waitpid(child.pid, &status, 0);
  EXPECT_EQ(shell_status(status), 0);
  EXPECT_EQ(printed, str(child.pid, "\n0000000000000200\n"));
}

volatile std::sig_atomic_t g_handled = 0;

// Handlers are not the child's: what it does with a signal does not reach our memory.
TEST(StartChild, LeavesOurSignalHandlersAlone) {
  const auto before = std::signal(SIGUSR2, [](int /*signal*/) { g_handled = 1; });
  EXPECT_EQ(ChildProcess(shell("kill -USR2 $$"), "").wait(), 128 + SIGUSR2);
  EXPECT_EQ(g_handled, 0);
  std::raise(SIGUSR2);
  EXPECT_EQ(g_handled, 1);
  std::signal(SIGUSR2, before);
}

} // namespace
} // namespace tessera
