#include <filesystem>
#include <fstream>
#include <random>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace tessera::plans::test {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string replaced(const std::string& what, const std::string& by) {
  std::string text = to_json(sample());
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what << " in " << text;
  return text.replace(at, what.size(), by);
}

std::string parse_error(const std::string& text) {
  return error_of([&] { plan_from_json(text); });
}

TEST(PlanFile, RoundTrip) {
  EXPECT_EQ(plan_from_json(to_json(sample())), sample());
  EXPECT_EQ(plan_from_json(to_json(Plan{})), Plan{});
  Plan custom = sample();
  custom.schedule = "custom";
  custom.microbatches = 1;
  custom.custom_schedule = "0F 0B";
  EXPECT_EQ(plan_from_json(to_json(custom)), custom);
}

TEST(PlanFile, ErrorsNameTheField) {
  EXPECT_THAT(
      parse_error(replaced("\"version\": 1", "\"version\": 7")),
      HasSubstr("version: found 7; this program reads version 1"));
  EXPECT_THAT(
      parse_error(replaced("\"pipeline\": 2", "\"pipeline\": \"2\"")),
      HasSubstr("degrees.pipeline: found \"2\"; write an integer"));
  EXPECT_THAT(
      parse_error(replaced("\"tensor\": 1", "\"tensors\": 1")),
      HasSubstr("degrees.\"tensors\": unknown field; the nearest known field "
                "is \"tensor\""));
  EXPECT_THAT(parse_error(replaced("\"tensor\": 1,", "")), HasSubstr("degrees.tensor: missing"));
  EXPECT_THAT(parse_error(replaced("\"PTD\"", "4")), HasSubstr("placement: found 4; write a text"));
  EXPECT_THAT(
      parse_error(replaced("\"microbatches\": 4", "\"microbatches\": 1.5")),
      HasSubstr("microbatches: found 1.5"));
  EXPECT_THAT(
      parse_error(replaced("\"decoder\": 1", "\"decoder\": 9")),
      HasSubstr("\"decoder\" is 9; pp ranks are 0 to 1"));
  EXPECT_THAT(
      parse_error(replaced("\"decoder\": 1", "\"decoder\": null")),
      HasSubstr("partition.decoder: found null; write an integer"));
  EXPECT_THAT(
      parse_error(replaced("\"decoder\"", "\"encoder\"")), HasSubstr("\"encoder\": stands twice"));
  EXPECT_THAT(
      parse_error(replaced("\"schedule\"", "\"shedule\"")),
      AllOf(HasSubstr("\"shedule\""), HasSubstr("\"schedule\"")));
  EXPECT_THAT(parse_error("[]"), HasSubstr("found a list; write an object"));
  EXPECT_THAT(parse_error("{}"), HasSubstr("version: missing"));
  EXPECT_THAT(parse_error("{"), HasSubstr("not valid JSON"));
}

TEST(PlanFile, AnyBytesGiveAPlanOrAPlanError) {
  std::mt19937 random(13);
  const std::string seed = to_json(sample());
  int valid = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    std::string text = seed;
    for (auto edits = random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = static_cast<char>(random() % 256);
      } else {
        text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
    }
    try {
      const Plan plan = plan_from_json(text);
      EXPECT_EQ(plan_from_json(to_json(plan)), plan) << text;
      ++valid;
    } catch (const PlanError& error) {
      EXPECT_THAT(error.what(), HasSubstr("plan")) << text;
    }
  }
  EXPECT_GT(valid, 100);
  EXPECT_LT(valid, 4900);
}

class OnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / str("tessera_plan_test_", getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  std::filesystem::path folder_;
};

TEST_F(OnDisk, SaveAndLoadLeaveOneFile) {
  const std::string path = (folder_ / "plan.json").string();
  save_plan(Plan{}, path);
  save_plan(sample(), path); // replaces
  EXPECT_EQ(load_plan(path), sample());
  const std::filesystem::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(OnDisk, ErrorsNameTheFile) {
  const std::string missing = (folder_ / "missing.json").string();
  EXPECT_THAT(error_of([&] { load_plan(missing); }), HasSubstr(missing + ": cannot be read"));
  EXPECT_THAT(error_of([&] { load_plan(folder_.string()); }), HasSubstr("cannot be read"));
  const std::string nowhere = (folder_ / "no" / "plan.json").string();
  EXPECT_THAT(
      error_of([&] { save_plan(sample(), nowhere); }), HasSubstr(nowhere + ": cannot be written"));
  // A folder in the file's place: the half-written file goes away again.
  const auto taken = folder_ / "taken";
  std::filesystem::create_directories(taken / "inside");
  EXPECT_THAT(
      error_of([&] { save_plan(sample(), taken.string()); }), HasSubstr("cannot be written"));
  const std::filesystem::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  const std::string torn = (folder_ / "torn.json").string();
  std::ofstream(torn) << to_json(sample()).substr(0, 80);
  EXPECT_THAT(
      error_of([&] { load_plan(torn); }), AllOf(HasSubstr(torn), HasSubstr("not valid JSON")));
}

} // namespace

} // namespace tessera::plans::test
