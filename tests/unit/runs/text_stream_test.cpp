#include "cli/generate/text_stream.h"

#include <array>
#include <csignal>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "folder.h"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

class Output {
 public:
  Output() : path_(folder_ / "out"), file_(std::fopen(path_.c_str(), "w")) {}
  ~Output() {
    std::fclose(file_);
  }
  std::FILE* file() {
    return file_;
  }
  std::string text() const {
    return read(path_);
  }

 private:
  Folder folder_;
  std::string path_;
  std::FILE* file_;
};

TEST(TextStream, ShowsWhatIsNewAtOnce) {
  Output output;
  TextStream stream(output.file(), "the output");
  stream.show("In the");
  EXPECT_EQ(output.text(), "In the");
  stream.show("In the beginning");
  EXPECT_EQ(output.text(), "In the beginning");
  stream.finish("In the beginning", "\n");
  EXPECT_EQ(output.text(), "In the beginning\n");
}

TEST(TextStream, KeepsACharacterBackUntilItIsWhole) {
  const std::string whole = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8D.";
  Output output;
  TextStream stream(output.file(), "the output");
  for (std::size_t end = 0; end <= whole.size(); ++end) {
    stream.show(whole.substr(0, end));
    const std::string shown = output.text();
    // Never a lead byte without the rest.
    for (const std::string part : {"a", "a\xC3\xA9", "a\xC3\xA9\xE2\x82\xAC"}) {
      EXPECT_TRUE(shown.size() != part.size() || shown == part);
    }
    for (const std::size_t inside : {2, 4, 5, 7, 8, 9}) {
      EXPECT_NE(shown.size(), inside);
    }
  }
  EXPECT_EQ(output.text(), whole);
}

TEST(TextStream, MarksOfUnfinishedBytesWait) {
  Output output;
  TextStream stream(output.file(), "the output");
  stream.show("a\xEF\xBF\xBD");
  EXPECT_EQ(output.text(), "a");
  stream.show("a\xE2\x82\xAC");
  EXPECT_EQ(output.text(), "a\xE2\x82\xAC");
  stream.finish("a\xE2\x82\xAC\xEF\xBF\xBD", "\n");
  EXPECT_EQ(output.text(), "a\xE2\x82\xAC\xEF\xBF\xBD\n");
}

TEST(TextStream, AClosedPipeIsAnError) {
  std::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  close(ends[0]);
  std::FILE* file = fdopen(ends[1], "w");
  TextStream stream(file, "the output");
  try {
    stream.show("x");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the output cannot be written: Broken pipe"));
  }
  std::fclose(file);
}

TEST(TextStream, AFullDiskIsAnError) {
  std::FILE* file = std::fopen("/dev/full", "w");
  if (file == nullptr) {
    GTEST_SKIP() << "no /dev/full here";
  }
  TextStream stream(file, "the output");
  EXPECT_THROW(stream.finish("x", "\n"), Error);
  std::fclose(file);
}

} // namespace
} // namespace tessera::cli
