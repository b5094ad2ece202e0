#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "tessera/base/files.h"
#include "tessera/base/hash.h"
#include "tessera/base/log.h"
#include "tessera/base/statistics.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(Text, NearestIsTheFirstOfTheSmallestDistances) {
  EXPECT_EQ(nearest("pipline", {"data", "pipeline", "pipelined"}), "pipeline");
  EXPECT_EQ(nearest("x", {"a", "b"}), "a");
  EXPECT_THROW(nearest("x", {}), InternalError);
  EXPECT_EQ(nearest_alike("pipline", {"data", "pipeline", "pipelined"}), "pipeline");
  EXPECT_EQ(nearest_alike("dta", {"data", "pipeline"}), "data");
  EXPECT_EQ(nearest_alike("lr", {"eps", "learning_rate"}), "learning_rate");
  EXPECT_EQ(nearest_alike("decay", {"eps", "learning_rate"}), "");
  EXPECT_EQ(nearest_alike("x", {"a", "b"}), "");
  EXPECT_EQ(nearest_alike("x", {}), "");
}

TEST(Text, JoinsWordsAndPaths) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a", "", "c"}, ", "), "a, , c");
  EXPECT_EQ(join_path("", "layers"), "layers");
  EXPECT_EQ(join_path("layers", "0"), "layers.0");
}

TEST(Version, IsThatOfTheProject) {
  const std::string text = version();
  EXPECT_THAT(text, ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(read_file(PROJECT_FILE), HasSubstr("project(tessera VERSION " + text + " "));
}

TEST(Hash, EqualsThePublishedValues) {
  EXPECT_EQ(hash_text(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(hash_text("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(hash_text("foobar"), 0x85944171f73967e8ULL);
  EXPECT_EQ(hash_text("bar", hash_text("foo")), hash_text("foobar"));
  // The first output of a SplitMix64 generator with state 0.
  EXPECT_EQ(mix_bits(kMixStep), 0xe220a8397b1dcdafULL);
}

TEST(Statistics, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_THROW(median({}), InternalError);
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_files_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  std::filesystem::path folder_;
};

TEST_F(Files, ReadsAWholeFileUpToTheLimit) {
  const std::string path = (folder_ / "text").string();
  const std::string content = std::string(100'000, 'x') + '\0' + "end";
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_EQ(read_file(path), content);
  EXPECT_EQ(read_file(path, content.size()), content);
  EXPECT_THAT(try_read_file(path, content.size() - 1).failure, HasSubstr("more than 100003 bytes"));
}

TEST_F(Files, TellsWhyAFileCannotBeRead) {
  const std::string missing = (folder_ / "missing").string();
  EXPECT_EQ(try_read_file(missing).failure, "No such file or directory");
  EXPECT_EQ(try_read_file(folder_.string()).failure, "is a folder");
  try {
    read_file<PlanError>(missing);
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_EQ(error.what(), "cannot read '" + missing + "': No such file or directory");
  }
}

TEST(Log, NamesTheProgramTheLevelAndAnyRankButTheFirst) {
  ::testing::internal::CaptureStderr();
  log::warning("a {} b");
  log::set_rank(3);
  log::info("note");
  log::set_rank(0);
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "tessera: warning: a {} b\ntessera: rank 3: note\n");
}

} // namespace
} // namespace tessera
