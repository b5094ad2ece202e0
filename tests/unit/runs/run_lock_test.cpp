#include "cli/train/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "folder.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::string& path) {
  try {
    RunLock lock(path, "folder 'x'");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunLock, IsThereWhileHeldAndGoneAfter) {
  const Folder folder;
  const std::string path = folder / "lock";
  {
    const RunLock lock(path, "folder 'x'");
    EXPECT_EQ(lock.taken_from(), "");
    EXPECT_THAT(read(path), HasSubstr(std::to_string(getpid())));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(refusal(path), "no error");
}

TEST(RunLock, ASecondHolderIsToldWhoTheFirstIs) {
  const Folder folder;
  const std::string path = folder / "lock";
  const RunLock lock(path, "folder 'x'");
  EXPECT_THAT(
      refusal(path),
      AllOf(
          HasSubstr("folder 'x' is in use by another run"),
          HasSubstr("process " + std::to_string(getpid()) + " on host"),
          HasSubstr("started 20")));
  EXPECT_THAT(read(path), HasSubstr(std::to_string(getpid()))) << "the holder's file was changed";
}

TEST(RunLock, OfADeadProcessIsTakenOver) {
  const Folder folder;
  const std::string path = folder / "lock";
  const pid_t child = fork();
  if (child == 0) {
    const RunLock lock(path, "folder 'x'");
    _exit(0); // without the destructor, as a killed process
  }
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(std::filesystem::exists(path));
  const RunLock lock(path, "folder 'x'");
  EXPECT_THAT(lock.taken_from(), HasSubstr("process " + std::to_string(child)));
}

TEST(RunLock, OfAnotherHostCountsUntilItIsRemoved) {
  const Folder folder;
  const std::string path = folder / "lock";
  write(path, R"({"host":"elsewhere.example","process":7,"start_ticks":1,"since":"then"})");
  EXPECT_THAT(
      refusal(path),
      AllOf(HasSubstr("host elsewhere.example, started then"), HasSubstr("remove " + path)));
  std::filesystem::remove(path);
  EXPECT_EQ(refusal(path), "no error");
}

TEST(RunLock, AFileThatIsNoLockIsTakenOver) {
  for (const char* text : {"", "{", "[1]", R"({"host": 3})"}) {
    const Folder folder;
    write(folder / "lock", text);
    EXPECT_EQ(refusal(folder / "lock"), "no error") << text;
  }
}

TEST(RunLock, AFolderThatIsNotThereIsNamed) {
  const Folder folder;
  EXPECT_THAT(
      refusal(folder / "none/lock"), AllOf(HasSubstr("none/lock"), HasSubstr("No such file")));
}

} // namespace
} // namespace tessera::cli
