#include "cli/launch/run_child.h"

#include <csignal>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

using std::chrono::seconds;

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

/// run_child while `signals` arrive here half a second apart. A fresh process
/// for each, since the test's other threads would take the signals.
int status_after(const std::string& script, const std::vector<int>& signals, int grace_seconds) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    const RunOutcome outcome = run_child(shell(script), seconds(grace_seconds));
    _exit(outcome.asked_to_end == !signals.empty() ? outcome.exit_status : 99);
  }
  for (const int signal : signals) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    kill(launcher, signal);
  }
  int status = 0;
  waitpid(launcher, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(RunChild, ReturnsTheStatusAsAShellDoes) {
  EXPECT_EQ(run_child(shell("exit 0"), seconds(1)).exit_status, 0);
  EXPECT_EQ(run_child(shell("exit 7"), seconds(1)).exit_status, 7);
  EXPECT_EQ(run_child(shell("kill -9 $$"), seconds(1)).exit_status, 137);
}

// A parent that ignores SIGCHLD hands this on, and the kernel then forgets how children end.
TEST(RunChild, ReturnsTheStatusWhereEndedChildrenAreIgnored) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    signal(SIGCHLD, SIG_IGN);
    const int status = run_child(shell("exit 7"), seconds(1)).exit_status;
    struct sigaction after {};
    sigaction(SIGCHLD, nullptr, &after);
    _exit(after.sa_handler == SIG_IGN ? status : 99);
  }
  int status = 0;
  waitpid(launcher, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(RunChild, SaysWhatCannotBeStarted) {
  try {
    run_child({"no-such-program-here"}, seconds(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'no-such-program-here'"));
    EXPECT_THAT(error.what(), testing::HasSubstr("No such file"));
  }
}

TEST(RunChild, AsksTheChildToEndInGoodOrder) {
  const std::string script = "trap 'exit 5' USR1; while :; do sleep 0.1; done";
  EXPECT_EQ(status_after(script, {SIGTERM}, 30), 5);
  EXPECT_EQ(status_after(script, {SIGINT}, 30), 5);
}

TEST(RunChild, ASecondSignalEndsItNow) {
  const std::string script = "trap '' USR1; trap 'exit 6' TERM; while :; do sleep 0.1; done";
  EXPECT_EQ(status_after(script, {SIGTERM, SIGTERM}, 30), 6);
}

TEST(RunChild, PatienceHasAnEnd) {
  const std::string script = "trap '' USR1; trap 'exit 6' TERM; while :; do sleep 0.1; done";
  EXPECT_EQ(status_after(script, {SIGTERM}, 1), 6);
}

} // namespace
} // namespace tessera::cli
