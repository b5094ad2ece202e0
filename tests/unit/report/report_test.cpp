#include "tessera/report/report.h"

#include <cmath>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::report {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kNasty = "<script>alert('x')</script>\"&";

ReportInput example() {
  ReportInput input;
  RunFacts& run = input.log.run;
  run.model = "gpt-small";
  run.world_size = 2;
  run.pipeline_parallel_degree = 2;
  run.microbatches = 2;
  run.parameters = 1'500'000;
  run.hosts = {"a", "b"};
  for (int i = 0; i < 20; ++i) {
    StepRecord step;
    step.step = i;
    step.loss = 20 - i;
    step.tokens_per_second = i == 0 ? 1 : 1000;
    step.step_seconds = i == 0 ? 60 : 0.5;
    step.bubble_share = 0.25;
    step.memory_bytes = {1000 + (i == 5 ? 500 : 0), 2000};
    input.log.steps.push_back(step);
  }
  input.log.validations = {{9, 12}, {19, std::nan("")}};
  input.log.traffic = {{9, "rdp", 10, 1024}, {19, "rdp", 20, 2048}, {19, "tp", 1, 4096}};
  input.log.samples = {{19, "Once", " upon a time"}};
  input.log.partition_svg = "<svg xmlns='x'/>";
  for (int step = 0; step < 9; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      timeline::Event event;
      event.category = "forward";
      event.rank = rank;
      event.pp_rank = rank;
      event.microbatch = 0;
      event.step = step;
      event.start_us = 1000.0 * step + 100 * rank;
      event.end_us = event.start_us + 100;
      input.timeline.events.push_back(event);
    }
  }
  input.timeline.world_size = 2;
  return input;
}

TEST(Summary, IsMadeOfMediansAndPeaks) {
  ReportInput input = example();
  const Summary summary = summarize(input);
  EXPECT_EQ(summary.last_step, 19);
  EXPECT_EQ(summary.first_loss, 20);
  EXPECT_EQ(summary.last_loss, 5.5);
  EXPECT_EQ(summary.best_validation_loss, 12);
  EXPECT_EQ(summary.tokens_per_second, 1000);
  EXPECT_EQ(summary.step_seconds, 0.5);
  EXPECT_THAT(summary.peak_memory_bytes, testing::ElementsAre(1500, 2000));
  EXPECT_NEAR(*summary.bubble_share, 0.5, 1e-9); // the timeline's
  input.timeline.events.clear();
  EXPECT_NEAR(*summarize(input).bubble_share, 0.25, 1e-9); // the log's
}

TEST(Summary, IsEmptyForAnEmptyLog) {
  const Summary summary = summarize({});
  EXPECT_FALSE(summary.last_step);
  EXPECT_FALSE(summary.last_loss);
  EXPECT_FALSE(summary.bubble_share);
}

TEST(Html, ShowsEveryPart) {
  const std::string html = to_html(example());
  EXPECT_THAT(html, HasSubstr("<h1>gpt-small</h1>"));
  EXPECT_THAT(html, HasSubstr("1.50 M parameters"));
  EXPECT_THAT(html, HasSubstr("ranks: 2 pp x 1 tp x 1 rdp"));
  EXPECT_THAT(html, HasSubstr("pipeline of step 8"));
  EXPECT_THAT(html, HasSubstr("6 of 9 recorded steps are shown"));
  EXPECT_THAT(html, HasSubstr("2.00 KiB in 20 calls"));
  EXPECT_THAT(html, HasSubstr("rank 0 on a"));
  EXPECT_THAT(html, HasSubstr("<b>Once</b> upon a time"));
  EXPECT_THAT(html, HasSubstr("data:image/svg+xml;base64,PHN2Zy"));
}

TEST(Html, FetchesNothingAndRunsNothing) {
  const std::string html = to_html(example());
  EXPECT_THAT(html, HasSubstr("Content-Security-Policy"));
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("<link")));
  EXPECT_THAT(html, Not(HasSubstr("@import")));
}

TEST(Html, EscapesAllThatAUserWrote) {
  ReportInput input = example();
  RunFacts& run = input.log.run;
  run.model = run.data = run.started = run.precision = run.schedule = kNasty;
  run.hosts = {kNasty, kNasty};
  run.config_json = run.plan_json = kNasty;
  input.log.traffic[0].group = kNasty;
  input.log.samples[0] = {1, kNasty, kNasty};
  input.log.partition_svg = kNasty;
  for (auto& event : input.timeline.events) {
    event.name = kNasty;
  }
  const std::string html = to_html(input);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("alert('x')")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)"));
}

/// Every element that is opened is closed, in order.
TEST(Html, IsWellFormed) {
  const std::string html = to_html(example());
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z0-9]+)([^>]*?)(/?)>");
  const std::string body = html.substr(html.find("<body>"));
  for (std::sregex_iterator it(body.begin(), body.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if ((*it)[4] == "/" || name == "input" || name == "img" || name == "meta") {
      continue;
    }
    if ((*it)[1] == "/") {
      if (name == "html") {
        continue; // opened before the body
      }
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    } else {
      open.push_back(name);
    }
  }
  EXPECT_THAT(open, testing::IsEmpty());
}

TEST(Html, SaysWhatIsMissing) {
  const std::string html = to_html({});
  EXPECT_THAT(html, HasSubstr("The log has no steps yet."));
  EXPECT_THAT(html, HasSubstr("No timeline was recorded"));
  EXPECT_THAT(html, HasSubstr("The log has no traffic."));
  ReportInput torn;
  torn.log.torn = true;
  EXPECT_THAT(to_html(torn), HasSubstr("was cut off"));
}

TEST(Html, SaysWhereTheLossWasLost) {
  ReportInput input = example();
  input.log.steps[13].loss = std::nan("");
  EXPECT_THAT(to_html(input), HasSubstr("not finite at step 13"));
}

TEST(Text, ShowsTheSameAsTables) {
  const std::string text = to_text(example());
  EXPECT_THAT(text, HasSubstr("gpt-small, 1.50 M parameters, 2 ranks"));
  EXPECT_THAT(text, HasSubstr("20 -> 5.5, best validation 12"));
  EXPECT_THAT(text, HasSubstr("bubble      50.0 %"));
  EXPECT_TRUE(std::regex_search(text, std::regex("rdp +2.00 KiB +20\n")));
  EXPECT_TRUE(std::regex_search(text, std::regex(" 19 +1 +1.00 k")));
}

} // namespace
} // namespace tessera::report
