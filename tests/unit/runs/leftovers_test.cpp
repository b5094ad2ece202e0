#include "cli/launch/leftovers.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "folder.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::UnorderedElementsAre;

std::string owner() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return std::string(name) + "." + std::to_string(getuid());
}

/// A machine where process 11 lives and process 12 does not.
class Leftovers : public testing::Test {
 protected:
  Leftovers() {
    places_.temporary = folder_ / "tmp";
    places_.shared_memory = folder_ / "shm";
    places_.processes = folder_ / "proc";
    places_.least_age_seconds = 0;
    fs::create_directories(places_.processes + "/11");
    fs::create_directories(places_.shared_memory);
    fs::create_directories(places_.temporary + "/ompi." + owner());
    write(places_.processes + "/11/maps", "");
  }

  std::vector<std::string> found() const {
    std::vector<std::string> paths;
    for (const Leftover& leftover : find_leftovers(places_)) {
      paths.push_back(leftover.path);
    }
    return paths;
  }

  Folder folder_;
  LeftoverPlaces places_;
};

TEST_F(Leftovers, SessionsOfProcessesThatAreGone) {
  const std::string sessions = places_.temporary + "/ompi." + owner();
  for (const char* name : {"/pid.11", "/pid.12", "/pid.x", "/other"}) {
    fs::create_directories(sessions + name);
    write(sessions + name + "/file", std::string(8192, 'x'));
  }
  fs::create_directories(places_.temporary + "/ompi.other-host.0/pid.12");
  EXPECT_THAT(found(), UnorderedElementsAre(sessions + "/pid.12"));
  EXPECT_GE(find_leftovers(places_).front().bytes, 8192);
}

TEST_F(Leftovers, TemporaryFoldersOfThisProgram) {
  for (const char* name :
       {"/tessera-trials-11-abc",
        "/tessera-trials-12-abc",
        "/tessera-tokens-12",
        "/tessera-ends-11-abc",
        "/tessera-ends-12-abc",
        "/tessera-12"}) {
    fs::create_directories(places_.temporary + name);
  }
  EXPECT_THAT(
      found(),
      UnorderedElementsAre(
          places_.temporary + "/tessera-trials-12-abc",
          places_.temporary + "/tessera-tokens-12",
          places_.temporary + "/tessera-ends-12-abc"));
}

TEST_F(Leftovers, SharedMemoryThatNobodyHasMapped) {
  const std::string used = places_.shared_memory + "/vader_segment." + owner() + ".aa.0";
  const std::string unused = places_.shared_memory + "/vader_segment." + owner() + ".bb.0";
  write(used, "x");
  write(unused, "x");
  write(places_.shared_memory + "/vader_segment.other-host.0.cc.0", "x");
  write(places_.processes + "/11/maps", "7f00-7f01 rw-s 00000000 00:01 5    " + used + "\n");
  EXPECT_THAT(found(), UnorderedElementsAre(unused));
}

TEST_F(Leftovers, WhatIsYoungIsLeftAlone) {
  fs::create_directories(places_.temporary + "/tessera-tokens-12");
  places_.least_age_seconds = 3600;
  EXPECT_TRUE(found().empty());
}

TEST_F(Leftovers, ALinkIsNotFollowed) {
  fs::create_directories(folder_ / "precious");
  fs::create_directory_symlink(folder_ / "precious", places_.temporary + "/tessera-tokens-12");
  EXPECT_TRUE(found().empty());
}

TEST_F(Leftovers, SweepingRemovesThem) {
  const std::string path = places_.temporary + "/tessera-tokens-12";
  fs::create_directories(path + "/inner");
  const auto gone = sweep(find_leftovers(places_));
  EXPECT_EQ(gone.size(), 1U);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(summary(gone), "1 leftover of killed runs (0.0 MiB)");
}

} // namespace
} // namespace tessera::cli
