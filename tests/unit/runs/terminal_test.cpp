// What a person at a terminal sees of a long command, and how Ctrl-C ends it.
#include <csignal>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/interruption.h"
#include "cli/redrawn_line.h"

namespace tessera::cli {
namespace {

TEST(RedrawnLine, IsDrawnInItsPlaceAndTakenAway) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  RedrawnLine line(stream);
  line.clear(); // nothing is there
  line.show("one");
  line.show("two");
  line.clear();
  line.show("three");
  line.keep();
  line.clear();
  std::fclose(stream);
  EXPECT_EQ(std::string(text, size), "one\r\033[Ktwo\r\033[Kthree\n");
  std::free(text); // NOLINT(cppcoreguidelines-no-malloc): open_memstream's
}

TEST(ProgressBar, IsFilledFromNothingToAll) {
  EXPECT_EQ(progress_bar(0, 0, 4), "[....]");
  EXPECT_EQ(progress_bar(0, 8, 4), "[....]");
  EXPECT_EQ(progress_bar(3, 8, 4), "[#...]");
  EXPECT_EQ(progress_bar(8, 8, 4), "[####]");
}

TEST(Interruption, NotesTheFirstAndLeavesTheSecondToTheProgram) {
  const Interruption interruption;
  EXPECT_FALSE(interruption.asked());
  std::raise(SIGINT);
  EXPECT_TRUE(interruption.asked());
  EXPECT_EXIT(std::raise(SIGINT), testing::KilledBySignal(SIGINT), "");
}

TEST(Interruption, GivesTheHandlerBack) {
  const auto before = std::signal(SIGINT, SIG_IGN);
  {
    const Interruption interruption;
    EXPECT_FALSE(interruption.asked()); // of an earlier one nothing is left
  }
  EXPECT_EQ(std::signal(SIGINT, before), SIG_IGN);
}

} // namespace
} // namespace tessera::cli
