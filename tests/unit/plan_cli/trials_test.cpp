#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/plan/run_trials.h"
#include "models/data/data_folder.h"
#include "models/data/token_file.h"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

std::string path_of(const char* name) {
  return (std::filesystem::path(testing::TempDir()) / name).string();
}

TEST(Trials, ReasonsAreReadFromTheLog) {
  EXPECT_THAT(
      reason_of_failure("tessera: rank 1 on host x was killed by signal 9 (SIGKILL)\n", 137),
      HasSubstr("out of memory: tessera: rank 1"));
  EXPECT_THAT(
      reason_of_failure("noise\nDefaultCPUAllocator: can't allocate memory: 8 bytes\n", 1),
      HasSubstr("out of memory"));
  EXPECT_EQ(
      reason_of_failure(
          "tessera: data.batch is odd\n"
          "tessera: rank 0 on host x ended with exit status 2\n",
          2),
      "tessera: data.batch is odd");
  EXPECT_EQ(reason_of_failure("", 124), "it did not end in time");
  EXPECT_EQ(reason_of_failure("", 3), "exit status 3");
}

TEST(Trials, RandomTokensAreADataFolder) {
  const std::string folder = path_of("tokens");
  write_random_tokens(folder, 100, 500);
  const data::TokenDataset tokens(folder + "/" + data::kTrainFile);
  EXPECT_EQ(tokens.size(), 500u);
  EXPECT_EQ(tokens.vocab_size(), 100);
}

} // namespace
} // namespace tessera::cli
