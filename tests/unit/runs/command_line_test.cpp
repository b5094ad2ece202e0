#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/near_names.h"
#include "cli/number_check.h"
#include "cli/shortened.h"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

class CommandLine : public testing::Test {
 protected:
  CommandLine() {
    app_.require_subcommand(1);
    CLI::App* train = app_.add_subcommand("train", "");
    train->add_flag("--resume", resume_, "");
    train->add_option("--steps", steps_, "")->check(positive_number());
    app_.add_subcommand("generate", "");
    CLI::App* data = app_.add_subcommand("data", "");
    data->require_subcommand(1);
    data->add_subcommand("prepare", "");
    CLI::App* partition = app_.add_subcommand("partition", "");
    partition->add_option_group("source")->add_flag("--list", "");
  }

  /// What stands on standard error after the words were refused.
  std::string refusal(const std::string& words) {
    app_.clear();
    try {
      app_.parse(words, false);
    } catch (const CLI::ParseError& error) {
      return std::string(error.what()) + "\n" + near_names(app_);
    }
    return "accepted";
  }

  CLI::App app_;
  bool resume_ = false;
  double steps_ = 0;
};

TEST_F(CommandLine, NamesTheNearestCommandAndOption) {
  EXPECT_THAT(refusal("trian"), HasSubstr("'trian': did you mean train?"));
  EXPECT_THAT(refusal("train --resum"), HasSubstr("'--resum': did you mean --resume?"));
  EXPECT_THAT(refusal("train --step=3"), HasSubstr("'--step': did you mean --steps?"));
  EXPECT_THAT(refusal("data prepaer"), HasSubstr("'prepaer': did you mean prepare?"));
}

TEST_F(CommandLine, GuessesNothingFarAway) {
  EXPECT_THAT(refusal("quux"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(refusal("train --colour"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(refusal("partition 4"), Not(HasSubstr("did you mean"))); // a group is no command
}

TEST_F(CommandLine, NumbersOutOfRangeAreShort) {
  for (const char* text : {"0", "-1", "1e400", "nan", "inf", "x", "1x", ""}) {
    const std::string message = refusal(std::string("train --steps=") + text);
    EXPECT_LT(message.size(), 120U) << message;
    EXPECT_NE(message, "accepted") << text;
  }
  EXPECT_THAT(refusal("train --steps=-1"), HasSubstr("must be a number above 0, found '-1'"));
  EXPECT_EQ(refusal("train --steps=3"), "accepted");
}

// A message quotes what the user wrote, which may be a file by mistake; paths are shown whole.
TEST(Shortened, WordsThatAreNoPaths) {
  const std::string path(4000, 'p');
  const std::string value(100'000, 'v');
  EXPECT_EQ(with_short_words("no '" + path + "' there"), "no '" + path + "' there");
  EXPECT_EQ(
      with_short_words("no\n " + value + "\n"),
      "no\n " + value.substr(0, 200) + "... (100000 bytes)\n");
  EXPECT_EQ(
      shortened(std::string(199, 'a') + "\u00e4b"), std::string(199, 'a') + "... (202 bytes)");
}

} // namespace
} // namespace tessera::cli
