#include "tessera/report/run_log.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::report {
namespace {

using testing::HasSubstr;

class RunLogFile : public testing::Test {
 protected:
  RunLogFile()
      : path_(
            testing::TempDir() + "run_log_" +
            testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl") {
    std::filesystem::remove(path_);
  }
  ~RunLogFile() override {
    std::filesystem::remove(path_);
  }

  std::string text() const {
    std::ifstream file(path_);
    std::ostringstream out;
    out << file.rdbuf();
    return out.str();
  }

  const std::string path_;
};

RunFacts facts() {
  RunFacts run;
  run.model = "gpt \"small\"";
  run.started = "2026-01-02T03:04:05Z";
  run.data = "corpus";
  run.precision = "bf16";
  run.schedule = "interleaved";
  run.world_size = 4;
  run.pipeline_parallel_degree = 2;
  run.data_parallel_degree = 2;
  run.microbatches = 8;
  run.parameters = 12'345'678;
  run.tokens_per_step = 4096;
  run.hosts = {"a", "a", "b", "b"};
  run.config_json = "{\"microbatches\":8}";
  return run;
}

StepRecord step(std::int64_t number, double loss) {
  StepRecord record;
  record.step = number;
  record.loss = loss;
  record.tokens_per_second = 1000;
  record.step_seconds = 0.5;
  record.learning_rate = 1e-3;
  record.memory_bytes = {1, 2, 3, 4};
  return record;
}

std::string error_of(const std::string& text) {
  try {
    parse_run_log(text, "x.jsonl");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(RunLogFile, ComesBackAsItWasWritten) {
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kNew);
    writer.write(facts());
    StepRecord first = step(0, 9.5);
    first.grad_norm = 1.25;
    first.bubble_share = 0.125;
    writer.write(first);
    writer.write(step(1, std::nan("")));
    writer.write(ValidationRecord{1, 8.5});
    writer.write(TrafficRecord{1, "rdp", 12, 1LL << 40});
    writer.write(SampleRecord{1, "In the", " beginning\n\xff"});
    writer.write_partition("<svg/>");
  }
  const RunLog log = read_run_log(path_);
  EXPECT_FALSE(log.torn);
  EXPECT_EQ(log.run.model, "gpt \"small\"");
  EXPECT_EQ(log.run.started, "2026-01-02T03:04:05Z");
  EXPECT_EQ(log.run.data, "corpus");
  EXPECT_EQ(log.run.precision, "bf16");
  EXPECT_EQ(log.run.schedule, "interleaved");
  EXPECT_EQ(log.run.world_size, 4);
  EXPECT_EQ(log.run.pipeline_parallel_degree, 2);
  EXPECT_EQ(log.run.tensor_parallel_degree, 1);
  EXPECT_EQ(log.run.data_parallel_degree, 2);
  EXPECT_EQ(log.run.microbatches, 8);
  EXPECT_EQ(log.run.parameters, 12'345'678);
  EXPECT_EQ(log.run.tokens_per_step, 4096);
  EXPECT_THAT(log.run.hosts, testing::ElementsAre("a", "a", "b", "b"));
  EXPECT_EQ(log.run.config_json, "{\n  \"microbatches\": 8\n}");
  EXPECT_EQ(log.run.plan_json, "");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.steps[0].loss, 9.5);
  EXPECT_EQ(log.steps[0].grad_norm, 1.25);
  EXPECT_EQ(log.steps[0].bubble_share, 0.125);
  EXPECT_EQ(log.steps[0].learning_rate, 1e-3);
  EXPECT_THAT(log.steps[0].memory_bytes, testing::ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(std::isnan(log.steps[1].loss));
  EXPECT_EQ(log.steps[1].grad_norm, std::nullopt);
  EXPECT_EQ(log.steps[1].bubble_share, std::nullopt);
  ASSERT_EQ(log.validations.size(), 1U);
  EXPECT_EQ(log.validations[0].loss, 8.5);
  ASSERT_EQ(log.traffic.size(), 1U);
  EXPECT_EQ(log.traffic[0].bytes, 1LL << 40);
  ASSERT_EQ(log.samples.size(), 1U);
  EXPECT_EQ(log.samples[0].text, " beginning\n\xEF\xBF\xBD");
  EXPECT_EQ(log.partition_svg, "<svg/>");
}

TEST_F(RunLogFile, IsReadableBeforeItIsClosed) {
  RunLogWriter writer(path_, RunLogWriter::Mode::kNew);
  writer.write(facts());
  writer.write(step(0, 1));
  EXPECT_EQ(read_run_log(path_).steps.size(), 1U);
}

TEST_F(RunLogFile, AResumedRunReplacesTheStepsItRunsAgain) {
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kNew);
    writer.write(facts());
    for (int i = 0; i < 5; ++i) {
      writer.write(step(i, i));
    }
    writer.write(ValidationRecord{4, 4});
  }
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kContinue);
    RunFacts again = facts();
    again.first_step = 3;
    writer.write(again);
    writer.write(step(3, 30));
  }
  const RunLog log = read_run_log(path_);
  std::vector<double> losses;
  for (const auto& record : log.steps) {
    losses.push_back(record.loss);
  }
  EXPECT_THAT(losses, testing::ElementsAre(0, 1, 2, 30));
  EXPECT_TRUE(log.validations.empty());
  EXPECT_EQ(log.run.first_step, 3);
}

TEST_F(RunLogFile, LeavesATornLastLineOutAndContinuesAfterIt) {
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kNew);
    writer.write(facts());
    writer.write(step(0, 1));
  }
  std::ofstream(path_, std::ios::app) << "{\"type\":\"step\",\"st";
  EXPECT_TRUE(read_run_log(path_).torn);
  EXPECT_EQ(read_run_log(path_).steps.size(), 1U);
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kContinue);
    writer.write(step(1, 1));
  }
  const RunLog log = read_run_log(path_);
  EXPECT_FALSE(log.torn);
  EXPECT_EQ(log.steps.size(), 2U);
}

TEST_F(RunLogFile, SaysWhichFileCannotBeOpened) {
  try {
    RunLogWriter writer("/nonexistent/x.jsonl", RunLogWriter::Mode::kNew);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'/nonexistent/x.jsonl'"));
    EXPECT_THAT(error.what(), HasSubstr("No such file"));
  }
  EXPECT_THROW(read_run_log(path_), Error);
}

TEST_F(RunLogFile, SaysThatTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "no /dev/full here";
  }
  RunLogWriter writer("/dev/full", RunLogWriter::Mode::kNew);
  try {
    writer.write(facts());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
  }
}

TEST_F(RunLogFile, RefusesAConfigurationThatIsNoJson) {
  RunLogWriter writer(path_, RunLogWriter::Mode::kNew);
  RunFacts run = facts();
  run.config_json = "{";
  EXPECT_THROW(writer.write(run), Error);
}

TEST_F(RunLogFile, RefusesANumberThatNoDoubleHolds) {
  EXPECT_THROW(parse_run_log("[1e999]\n", "log"), Error);
}

TEST_F(RunLogFile, NamesLineAndField) {
  RunLogWriter(path_, RunLogWriter::Mode::kNew).write(facts());
  const std::string run = text();
  EXPECT_THAT(error_of(""), HasSubstr("no line of type 'run'"));
  EXPECT_THAT(error_of(run + "{\n"), HasSubstr("x.jsonl: line 2: not valid JSON"));
  EXPECT_THAT(
      error_of(run + "{\"type\":\"guess\"}\n"),
      HasSubstr("x.jsonl: line 2: 'type' must be run, step"));
  EXPECT_THAT(
      error_of(run + "{\"type\":\"validation\",\"step\":-1,\"loss\":1}\n"),
      HasSubstr("line 2: 'step' must be an integer from 0"));
  EXPECT_THAT(
      error_of(run + "{\"type\":\"validation\",\"step\":1,\"lost\":1}\n"),
      HasSubstr("unknown field 'lost'"));
  EXPECT_THAT(
      error_of(run + "{\"type\":\"validation\",\"step\":1}\n"),
      HasSubstr("field 'loss' is missing"));
  std::string other = run;
  other.replace(other.find("\"version\":1"), 11, "\"version\":9");
  EXPECT_THAT(error_of(other), HasSubstr("version 9 is not known"));
}

} // namespace
} // namespace tessera::report
