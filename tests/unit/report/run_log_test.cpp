#include "tessera/report/run_log.h"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <sys/resource.h>

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
  run.run_id = "0123456789abcdef";
  run.command = {"tessera", "train", "a job.json"};
  run.program = "tessera 0.1.0";
  run.steps = 500;
  run.flops_per_token = 3e6;
  run.peak_flops_per_second = 4.5e10;
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
  record.peak_bytes = {1, 0, 2, 4};
  record.offload_bytes = {4096, 0, 8192, 0};
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
    StepRecord first = step(1, 9.5);
    first.elapsed_seconds = 2.5;
    first.grad_norm = 1.25;
    first.bubble_share = 0.125;
    writer.write(first);
    StepRecord second = step(2, std::nan(""));
    second.loss_scale = 512;
    second.skipped = "the loss is NaN on rank 0";
    writer.write(second);
    writer.write(ValidationRecord{2, 8.5});
    writer.write(TrafficRecord{2, "rdp", 12, 1LL << 40});
    writer.write(SampleRecord{2, "In the", " beginning\n\xff"});
    writer.write_partition("<svg/>");
    writer.write(EndRecord{"stopped", 2, 3.5, "by a signal"});
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
  EXPECT_EQ(log.run.run_id, "0123456789abcdef");
  EXPECT_THAT(log.run.command, testing::ElementsAre("tessera", "train", "a job.json"));
  EXPECT_EQ(log.run.program, "tessera 0.1.0");
  EXPECT_EQ(log.run.steps, 500);
  EXPECT_EQ(log.run.flops_per_token, 3e6);
  EXPECT_EQ(log.run.peak_flops_per_second, 4.5e10);
  EXPECT_THAT(log.run.hosts, testing::ElementsAre("a", "a", "b", "b"));
  EXPECT_EQ(log.run.config_json, "{\n  \"microbatches\": 8\n}");
  EXPECT_EQ(log.run.plan_json, "");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.steps[0].step, 1);
  EXPECT_EQ(log.steps[0].loss, 9.5);
  EXPECT_EQ(log.steps[0].elapsed_seconds, 2.5);
  EXPECT_EQ(log.steps[0].skipped, "");
  EXPECT_EQ(log.steps[1].elapsed_seconds, std::nullopt);
  EXPECT_EQ(log.steps[1].skipped, "the loss is NaN on rank 0");
  EXPECT_EQ(log.steps[0].grad_norm, 1.25);
  EXPECT_EQ(log.steps[0].loss_scale, std::nullopt);
  EXPECT_EQ(log.steps[1].loss_scale, 512);
  EXPECT_EQ(log.steps[0].bubble_share, 0.125);
  EXPECT_EQ(log.steps[0].learning_rate, 1e-3);
  EXPECT_THAT(log.steps[0].memory_bytes, testing::ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(log.steps[0].peak_bytes, testing::ElementsAre(1, 0, 2, 4));
  EXPECT_THAT(log.steps[0].offload_bytes, testing::ElementsAre(4096, 0, 8192, 0));
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
  ASSERT_EQ(log.starts.size(), 1U);
  ASSERT_TRUE(log.starts[0].end);
  EXPECT_EQ(log.starts[0].end->state, "stopped");
  EXPECT_EQ(log.starts[0].end->step, 2);
  EXPECT_EQ(log.starts[0].end->reason, "by a signal");
  EXPECT_EQ(log.starts[0].last_step, 2);
  EXPECT_EQ(log.starts[0].elapsed_seconds, 3.5);
  EXPECT_EQ(log.bad_lines, 0);
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
    for (int i = 1; i <= 5; ++i) {
      writer.write(step(i, i));
    }
    writer.write(ValidationRecord{5, 5});
  }
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kContinue);
    RunFacts again = facts();
    again.first_step = 4;
    writer.write(again);
    writer.write(step(4, 40));
  }
  const RunLog log = read_run_log(path_);
  std::vector<double> losses;
  for (const auto& record : log.steps) {
    losses.push_back(record.loss);
  }
  EXPECT_THAT(losses, testing::ElementsAre(1, 2, 3, 40));
  EXPECT_TRUE(log.validations.empty());
  EXPECT_EQ(log.run.first_step, 4);
  ASSERT_EQ(log.starts.size(), 2U);
  EXPECT_EQ(log.starts[0].last_step, 5);
  EXPECT_FALSE(log.starts[0].end);
  EXPECT_EQ(log.starts[1].last_step, 4);
}

TEST_F(RunLogFile, LeavesATornLastLineOutAndContinuesAfterIt) {
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kNew);
    writer.write(facts());
    writer.write(step(1, 1));
  }
  std::ofstream(path_, std::ios::app) << "{\"type\":\"step\",\"st";
  EXPECT_TRUE(read_run_log(path_).torn);
  EXPECT_EQ(read_run_log(path_).steps.size(), 1U);
  {
    RunLogWriter writer(path_, RunLogWriter::Mode::kContinue);
    writer.write(step(2, 1));
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

// A limit on the file's size stands for a disk that is full for a while.
TEST_F(RunLogFile, ALineThatDoesNotFitIsLeftOutWhole) {
  RunLogWriter writer(path_, RunLogWriter::Mode::kNew);
  writer.write(facts());
  StepRecord step;
  step.step = 1;
  step.loss = 2;
  writer.write(step);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = before;
  tight.rlim_cur = std::filesystem::file_size(path_) + 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  step.step = 2;
  writer.write(step);
  writer.write(step);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  step.step = 3;
  writer.write(step);
  const RunLog log = read_run_log(path_);
  EXPECT_FALSE(log.torn);
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.steps[0].step, 1);
  EXPECT_EQ(log.steps[1].step, 3);
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

/// What the log of one good run line and `line` reports of `line`.
class RunLogWithBadLine : public RunLogFile {
 protected:
  RunLogWithBadLine() {
    RunLogWriter(path_, RunLogWriter::Mode::kNew).write(facts());
    run_ = text();
  }

  std::string reported(const std::string& line) const {
    const std::string good = "{\"type\":\"validation\",\"step\":1,\"loss\":1}\n";
    const RunLog log = parse_run_log(run_ + line + "\n" + good, "x.jsonl");
    EXPECT_EQ(log.bad_lines, 1);
    EXPECT_EQ(log.validations.size(), 1U); // the line after it is read
    return log.first_bad_line;
  }

  std::string run_;
};

TEST_F(RunLogWithBadLine, ItIsLeftOutAndNamedWithItsField) {
  EXPECT_THAT(reported("{"), HasSubstr("x.jsonl: line 2: not valid JSON"));
  EXPECT_THAT(
      reported("{\"type\":\"guess\"}"), HasSubstr("x.jsonl: line 2: 'type' must be run, step"));
  EXPECT_THAT(
      reported("{\"type\":\"validation\",\"step\":-1,\"loss\":1}"),
      HasSubstr("line 2: 'step' must be an integer from 0"));
  EXPECT_THAT(
      reported("{\"type\":\"validation\",\"step\":1,\"lost\":1}"),
      HasSubstr("unknown field 'lost'"));
  EXPECT_THAT(
      reported("{\"type\":\"validation\",\"step\":1}"), HasSubstr("field 'loss' is missing"));
  EXPECT_THAT(
      reported("{\"type\":\"end\",\"state\":\"dead\",\"step\":1,\"elapsed_seconds\":1,"
               "\"reason\":\"\"}"),
      HasSubstr("'state' must be \"finished\", \"stopped\" or \"failed\", found \"dead\""));
  // What is quoted of it is text that a browser and a terminal can show.
  EXPECT_THAT(reported("{\"type\":\"ste\xff\""), HasSubstr("ste\xEF\xBF\xBD"));
  EXPECT_LT(reported("\"" + std::string(100'000, 'x')).size(), 400U);
}

TEST_F(RunLogWithBadLine, ManyAreCountedAndTheFirstIsNamed) {
  const RunLog log = parse_run_log(run_ + "?\n\n{}\n[1e999]\n", "x.jsonl");
  EXPECT_EQ(log.bad_lines, 4);
  EXPECT_THAT(log.first_bad_line, HasSubstr("x.jsonl: line 2"));
}

/// Then the steps that ran again stand twice in the file.
TEST_F(RunLogWithBadLine, ADamagedRunLineOfARestartDoesNotDoubleSteps) {
  const auto line = [](int number, int loss) {
    return str(
        "{\"type\":\"step\",\"step\":",
        number,
        ",\"loss\":",
        loss,
        ",\"tokens_per_second\":1,\"step_seconds\":1,\"lr\":1,\"memory_bytes\":[]}\n");
  };
  const RunLog log = parse_run_log(
      run_ + line(1, 9) + line(2, 8) + line(3, 7) + "{\"type\":\"run\"}\n" + line(2, 80) +
          line(3, 70),
      "x.jsonl");
  EXPECT_EQ(log.bad_lines, 1);
  ASSERT_EQ(log.steps.size(), 3U);
  EXPECT_EQ(log.steps[0].loss, 9);
  EXPECT_EQ(log.steps[1].loss, 80);
  EXPECT_EQ(log.steps[2].loss, 70);
}

TEST_F(RunLogWithBadLine, ALogWithoutARunAndOneOfALaterProgramAreErrors) {
  EXPECT_THAT(error_of(""), HasSubstr("no line of type 'run'"));
  EXPECT_THAT(error_of("{\n"), HasSubstr("x.jsonl: line 1: not valid JSON"));
  std::string later = run_;
  later.replace(later.find("\"version\":2"), 11, "\"version\":9");
  EXPECT_THAT(error_of(later), HasSubstr("x.jsonl: the log has a run line of version 9"));
}

/// Version 1 counted steps from 0 and knew neither ids nor ends.
TEST(RunLogOfVersion1, IsReadAndCountedFrom1) {
  const RunLog log = parse_run_log(
      "{\"type\":\"run\",\"version\":1,\"model\":\"m\",\"started\":\"\",\"data\":\"d\","
      "\"precision\":\"f32\",\"schedule\":\"simple\",\"world_size\":1,"
      "\"pipeline_parallel_degree\":1,\"tensor_parallel_degree\":1,\"data_parallel_degree\":1,"
      "\"microbatches\":1,\"parameters\":1,\"tokens_per_step\":1,\"first_step\":0,"
      "\"hosts\":[\"a\"],\"config\":null,\"plan\":null}\n"
      "{\"type\":\"step\",\"step\":0,\"loss\":5,\"tokens_per_second\":1,\"step_seconds\":1,"
      "\"lr\":1,\"memory_bytes\":[]}\n"
      "{\"type\":\"validation\",\"step\":0,\"loss\":4}\n",
      "old.jsonl");
  EXPECT_EQ(log.bad_lines, 0) << log.first_bad_line;
  EXPECT_EQ(log.run.first_step, 1);
  ASSERT_EQ(log.steps.size(), 1U);
  EXPECT_EQ(log.steps[0].step, 1);
  EXPECT_EQ(log.validations[0].step, 1);
}

TEST(UtcTime, ComesBackAndRefusesOtherText) {
  EXPECT_EQ(seconds_of_utc("1970-01-02T00:00:01Z"), 86401);
  EXPECT_EQ(utc_of_seconds(*seconds_of_utc("2026-01-02T03:04:05Z")), "2026-01-02T03:04:05Z");
  EXPECT_EQ(seconds_of_utc("2026-01-02"), std::nullopt);
  EXPECT_EQ(seconds_of_utc("2026-01-02T03:04:05Z and more"), std::nullopt);
  EXPECT_EQ(utc_of_seconds(std::nan("")), "");
}

} // namespace
} // namespace tessera::report
