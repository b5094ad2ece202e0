#include <cmath>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/report/export/csv.h"
#include "tessera/report/export/tensorboard.h"

namespace tessera::report {
namespace {

using testing::ElementsAre;

RunLog example_log() {
  RunLog log;
  log.run.run_id = "cafe";
  log.run.started = "2026-01-02T03:04:05Z";
  log.run.tokens_per_step = 100;
  log.starts = {{log.run, std::nullopt, 2, 3}};
  StepRecord first;
  first.step = 1;
  first.loss = 0.1;
  first.tokens_per_second = 50;
  first.step_seconds = 2;
  first.learning_rate = 1e-3;
  log.steps = {first, first};
  log.steps[1].step = 2;
  log.steps[1].loss = std::nan("");
  log.steps[1].grad_norm = 1.0 / 3;
  log.steps[1].elapsed_seconds = 2.5;
  log.steps[1].memory_bytes = {10, 30, 20};
  log.steps[1].skipped = "NaN on rank 0, \"again\"";
  log.validations = {{0, 9}, {1, 8.5}, {2, 8}};
  return log;
}

TEST(Csv, HasOneRecordALineInTheOrderOfTheRun) {
  std::istringstream text(to_csv(example_log()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    ASSERT_EQ(line.back(), '\r');
    line.pop_back();
    lines.push_back(line);
  }
  EXPECT_THAT(
      lines,
      ElementsAre(
          "record,step,start,tokens,seconds,loss,tokens_per_second,step_seconds,learning_rate,"
          "grad_norm,bubble_share,loss_scale,memory_bytes,offload_bytes,skipped",
          "validation,0,,,,9,,,,,,,,,",
          "step,1,1,100,,0.1,50,2,0.001,,,,,,",
          "validation,1,,,,8.5,,,,,,,,,",
          "step,2,1,200,2.5,nan,50,2,0.001,0.3333333333333333,,,30,,"
          "\"NaN on rank 0, \"\"again\"\"\"",
          "validation,2,,,,8,,,,,,,,,"));
}

/// Source: RFC 3720, appendix B.4.
TEST(EventFile, TheChecksumIsThatOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

/// What follows the version is read back, with both checksums, in tests/cli/export_test.py.
TEST(EventFile, BeginsWithItsVersion) {
  const std::string file = to_event_file(example_log());
  const std::string first("\x1a\0\0\0\0\0\0\0", 8); // 26 bytes
  ASSERT_EQ(file.substr(0, 8), first);
  // wall_time, step 0, "brain.Event:2"
  EXPECT_EQ(file[12], '\x09');
  EXPECT_EQ(file.substr(21, 4), std::string("\x10\0\x1a\x0d", 4));
  EXPECT_EQ(file.substr(25, 11), "brain.Event");
}

TEST(EventFile, TheNameIsThatOfTheRun) {
  RunLog log = example_log();
  EXPECT_EQ(event_file_name(log), "events.out.tfevents.1767323045.cafe");
  log.starts.push_back(log.starts[0]); // a resumed run is the same run
  log.starts[1].facts.run_id = "feed";
  EXPECT_EQ(event_file_name(log), "events.out.tfevents.1767323045.cafe");
  log.starts[0].facts.run_id = "../x y";
  EXPECT_EQ(event_file_name(log), "events.out.tfevents.1767323045.___x_y");
  log.starts[0].facts.run_id = log.starts[0].facts.started = "";
  EXPECT_EQ(event_file_name(log), "events.out.tfevents.0.tessera");
}

} // namespace
} // namespace tessera::report
