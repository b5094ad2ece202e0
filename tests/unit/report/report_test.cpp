#include "tessera/report/report.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/report/format.h"

namespace tessera::report {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kNasty = "<script>alert('x')</script>\"&";

ReportInput example() {
  ReportInput input;
  RunFacts& run = input.log.run;
  run.run_id = "cafe";
  run.model = "gpt-small";
  run.started = "2026-01-02T03:04:05Z";
  run.command = {"tessera", "train", "my job.json"};
  run.program = "tessera 9.8.7";
  run.tokens_per_step = 500;
  run.steps = 30;
  run.world_size = 2;
  run.pipeline_parallel_degree = 2;
  run.microbatches = 2;
  run.parameters = 1'500'000;
  run.hosts = {"a", "b"};
  for (int i = 0; i < 20; ++i) {
    StepRecord step;
    step.step = i + 1;
    step.loss = 20 - i;
    step.tokens_per_second = i == 0 ? 1 : 1000;
    step.step_seconds = i == 0 ? 60 : 0.5;
    step.bubble_share = 0.25;
    step.memory_bytes = {1000 + (i == 5 ? 500 : 0), 2000};
    step.peak_bytes = {700, 800 + (i == 3 ? 100 : 0)};
    input.log.steps.push_back(step);
  }
  input.log.starts = {{run, EndRecord{"finished", 20, 100, ""}, 20, 100}};
  input.log.validations = {{10, 12}, {20, std::nan("")}};
  input.log.traffic = {{10, "rdp", 10, 1024}, {20, "rdp", 20, 2048}, {20, "tp", 1, 4096}};
  input.log.samples = {{20, "Once", " upon a time"}};
  input.log.partition_svg = "<svg xmlns='x'/>";
  input.timeline.run_id = "cafe";
  for (int step = 12; step < 21; ++step) {
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
  const Summary summary = summarize(example());
  EXPECT_EQ(summary.last_step, 20);
  EXPECT_EQ(summary.first_loss, 20);
  EXPECT_EQ(summary.last_loss, 5.5);
  EXPECT_EQ(summary.last_loss_from, 11);
  EXPECT_EQ(summary.best_validation_loss, 12);
  EXPECT_EQ(summary.best_validation_step, 10);
  EXPECT_EQ(summary.tokens_per_second->median, 1000);
  EXPECT_EQ(summary.step_seconds->median, 0.5);
  EXPECT_THAT(summary.peak_memory_bytes, testing::ElementsAre(1500, 2000));
  EXPECT_THAT(summary.peak_tensor_bytes, testing::ElementsAre(700, 900));
  EXPECT_EQ(summary.tokens, 20 * 500);
  EXPECT_EQ(summary.wall_seconds, 100);
}

/// Not that of the last recorded step: over all steps, with what most of them had.
TEST(Summary, TheBubbleIsThatOfAllLoggedSteps) {
  ReportInput input = example();
  for (std::size_t i = 0; i < input.log.steps.size(); ++i) {
    input.log.steps[i].bubble_share = 0.01 * static_cast<double>(i); // 0 to 0.19
  }
  const Summary summary = summarize(input);
  EXPECT_FALSE(summary.bubble_of_timeline);
  EXPECT_NEAR(summary.bubble_share->median, 0.095, 1e-12);
  EXPECT_NEAR(summary.bubble_share->low, 0.019, 1e-12);
  EXPECT_NEAR(summary.bubble_share->high, 0.171, 1e-12);
  EXPECT_EQ(summary.bubble_share->steps, 20);
  EXPECT_EQ(summary.bubble_share->first_step, 1);
  EXPECT_EQ(summary.bubble_share->last_step, 20);
  EXPECT_EQ(
      words::spread(*summary.bubble_share, format_share),
      "median of 20 steps, 1 to 20; 10th to 90th percentile 1.9 % to 17.1 %");
}

TEST(Summary, WithoutLoggedBubblesItIsThatOfTheTimeline) {
  ReportInput input = example();
  for (StepRecord& step : input.log.steps) {
    step.bubble_share.reset();
  }
  const Summary summary = summarize(input);
  EXPECT_TRUE(summary.bubble_of_timeline);
  EXPECT_NEAR(summary.bubble_share->median, 0.5, 1e-9);
  EXPECT_EQ(summary.bubble_share->steps, 9);
  input.timeline.events.clear();
  EXPECT_FALSE(summarize(input).bubble_share);
}

TEST(Summary, MfuIsTheFormulaOverTheMeasuredOrTheGivenPeak) {
  ReportInput input = example();
  EXPECT_FALSE(summarize(input).mfu); // nothing is made up
  EXPECT_THAT(words::mfu(input, summarize(input)), HasSubstr("unknown"));
  input.log.run.flops_per_token = 6e6;
  EXPECT_THAT(words::mfu(input, summarize(input)), HasSubstr("no peak was measured"));
  input.log.run.peak_flops_per_second = 24e9;
  EXPECT_NEAR(*summarize(input).mfu, 0.25, 1e-12); // 1000 tokens/s x 6e6 of 24e9
  EXPECT_THAT(
      words::mfu(input, summarize(input)),
      HasSubstr("25.0 % of 24.0 GFLOP/s (matrix products of all ranks, measured at the start)"));
  input.peak_flops_per_second = 60e9;
  EXPECT_NEAR(*summarize(input).mfu, 0.1, 1e-12);
  EXPECT_THAT(words::mfu(input, summarize(input)), HasSubstr("10.0 % of 60.0 GFLOP/s (given)"));
}

TEST(Summary, OperationsOfADeviceNeedNoPeak) {
  ReportInput input = example();
  EXPECT_FALSE(summarize(input).device_flops_per_second);
  EXPECT_THAT(words::device_flops(input, summarize(input)), HasSubstr("unknown"));
  input.log.run.flops_per_token = 6e6;
  input.log.run.world_size = 4;
  const Summary summary = summarize(input);
  // 1000 tokens/s x 6e6 of 4 ranks; the slow first step moves only the tenth percentile.
  EXPECT_NEAR(summary.device_flops_per_second->median, 1.5e9, 1);
  EXPECT_EQ(summary.device_flops_per_second->steps, 20);
  EXPECT_THAT(words::device_flops(input, summary), HasSubstr("1.50 GFLOP/s (median of 20 steps"));
  input.log.run.first_step = 100;
  EXPECT_THAT(words::device_flops(input, summarize(input)), HasSubstr("no steps of this start"));
}

TEST(Summary, SaysHowTheRunEnded) {
  ReportInput input = example();
  EXPECT_EQ(words::state(summarize(input)), "finished at step 20, 2026-01-02T03:05:45Z");
  input.log.starts[0].end->state = "failed";
  input.log.starts[0].end->reason = "rank 2 died";
  EXPECT_EQ(words::state(summarize(input)), "failed at step 20, 2026-01-02T03:05:45Z: rank 2 died");
  input.log.starts[0].end.reset();
  input.now = *seconds_of_utc("2026-01-02T05:05:45Z");
  EXPECT_EQ(
      words::state(summarize(input)),
      "no end is recorded: the run was killed or still runs; last record at step 20, "
      "2026-01-02T03:05:45Z (2 h 0 min before this report)");
}

/// Wall time and tokens of a run that was killed at step 14 and resumed at step 11.
TEST(Summary, AddsUpOverRestarts) {
  ReportInput input = example();
  Start again = input.log.starts[0];
  input.log.starts[0].end.reset();
  input.log.starts[0].last_step = 14;
  again.facts.first_step = 11;
  again.facts.tokens_per_step = 800;
  again.elapsed_seconds = 30;
  input.log.starts.push_back(again);
  const Summary summary = summarize(input);
  EXPECT_EQ(summary.wall_seconds, 130);
  EXPECT_EQ(summary.tokens, 10 * 500 + 10 * 800);
  EXPECT_THAT(to_html(input), HasSubstr("<td>resumed at step 11</td>"));
  EXPECT_THAT(to_text(input), HasSubstr("resumed at step 11"));
}

/// A start that was rolled back begins after one that came later.
TEST(Summary, AStepIsOfTheLastStartThatRanIt) {
  ReportInput input = example(); // 20 steps
  for (const auto& [first_step, tokens] : {std::pair{15, 600}, std::pair{6, 700}}) {
    Start again = input.log.starts[0];
    again.facts.first_step = first_step;
    again.facts.tokens_per_step = tokens;
    input.log.starts.push_back(again);
  }
  EXPECT_EQ(summarize(input).tokens, 5 * 500 + 15 * 700);
}

TEST(Summary, IsEmptyForAnEmptyLog) {
  const Summary summary = summarize({});
  EXPECT_FALSE(summary.last_step);
  EXPECT_FALSE(summary.last_loss);
  EXPECT_FALSE(summary.bubble_share);
  EXPECT_FALSE(summary.wall_seconds);
  EXPECT_EQ(summary.state.name, "open");
}

TEST(SameRun, TakesTheTimelineOfAnyStartAndNoOther) {
  ReportInput input = example();
  EXPECT_NO_THROW(check_same_run(input.log, input.timeline));
  const auto refused = [&input] {
    try {
      check_same_run(input.log, input.timeline);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  input.timeline.run_id = "feed";
  EXPECT_THAT(refused(), HasSubstr("its run id is 'feed', on 2 ranks; the log holds 'cafe'"));
  input.timeline.run_id = "";
  EXPECT_THAT(refused(), HasSubstr("it is measured and has no run id"));
  input.timeline.origin = "simulated";
  EXPECT_THAT(refused(), HasSubstr("it is simulated and has no run id"));
  Start again = input.log.starts[0];
  again.facts.run_id = "feed";
  input.log.starts.push_back(again);
  for (const char* id : {"cafe", "feed"}) {
    input.timeline.run_id = id;
    EXPECT_EQ(refused(), "taken");
  }
  // Logs of version 1 have no ids: their world must fit.
  input.log.starts = {Start{}};
  input.log.starts[0].facts.world_size = 2;
  input.timeline.run_id = "";
  EXPECT_EQ(refused(), "taken");
  input.timeline.world_size = 4;
  EXPECT_THAT(refused(), HasSubstr("on 4 ranks"));
}

TEST(Html, ShowsEveryPart) {
  const std::string html = to_html(example());
  EXPECT_THAT(html, HasSubstr("<h1>gpt-small</h1>"));
  EXPECT_THAT(html, HasSubstr("1.50 M parameters"));
  EXPECT_THAT(html, HasSubstr("2 ranks: 2 pp x 1 tp x 1 rdp"));
  EXPECT_THAT(html, HasSubstr("pipeline of step 20"));
  EXPECT_THAT(html, HasSubstr("Recorded: steps 12 to 20"));
  EXPECT_THAT(html, HasSubstr("finished at step 20"));
  EXPECT_THAT(html, HasSubstr("<td>20 of 30</td>"));
  EXPECT_THAT(html, HasSubstr("<td>tessera train &#39;my job.json&#39;</td>"));
  EXPECT_THAT(html, HasSubstr("tessera 9.8.7"));
  EXPECT_THAT(html, HasSubstr("perplexity 1.628e+05"));
  EXPECT_THAT(html, HasSubstr("training loss, mean of steps 11 to 20"));
  EXPECT_THAT(html, HasSubstr("100 tokens per second over all of it"));
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
  run.run_id = run.program = kNasty;
  run.command = {kNasty};
  input.log.starts[0] = {run, EndRecord{"failed", 1, 1, kNasty}, 1, 1};
  input.log.first_bad_line = kNasty;
  input.log.bad_lines = 1;
  input.log.steps[3].skipped = kNasty;
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

/// A screen that is dark and one that is narrow get their own rules, and no text needs a size that
/// shrinks with the drawing.
TEST(Html, SuitsDarkAndNarrowScreens) {
  const std::string html = to_html(example());
  EXPECT_THAT(html, HasSubstr("@media (prefers-color-scheme: dark)"));
  EXPECT_THAT(html, HasSubstr("@media (max-width: 640px)"));
  EXPECT_THAT(html, HasSubstr("name=\"color-scheme\" content=\"light dark\""));
  // A box with both lengths given is stretched; text lies outside of those.
  const std::regex box("<svg[^>]*viewBox[^>]*>[^]*?</svg>");
  for (std::sregex_iterator it(html.begin(), html.end(), box), end; it != end; ++it) {
    EXPECT_THAT(it->str(), Not(HasSubstr("<text")));
  }
}

/// In both colour schemes: 3 to 1 for lines and boxes, 4.5 to 1 for letters.
TEST(Html, ColoursCanBeReadInBothSchemes) {
  const std::string html = to_html(example());
  const auto dark_at = html.find("@media (prefers-color-scheme: dark)");
  const auto colour = [&html](std::size_t from, const std::string& name) {
    const auto at = html.find("--" + name + ": #", from) + name.size() + 5;
    std::string hex = html.substr(at, html.find_first_of(";}", at) - at);
    if (hex.size() == 3) {
      hex = {hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]};
    }
    double luminance = 0;
    const double weights[] = {0.2126, 0.7152, 0.0722};
    for (int i = 0; i < 3; ++i) {
      const double value = std::stoi(hex.substr(2 * i, 2), nullptr, 16) / 255.0;
      luminance +=
          weights[i] * (value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4));
    }
    return luminance;
  };
  const auto contrast = [](double a, double b) {
    return (std::max(a, b) + 0.05) / (std::min(a, b) + 0.05);
  };
  for (const std::size_t from : {std::size_t{0}, dark_at}) {
    const double paper = colour(from, "paper");
    for (const char* text : {"ink", "soft", "good", "bad", "open"}) {
      EXPECT_GE(contrast(colour(from, text), paper), 4.5) << text << (from > 0 ? ", dark" : "");
    }
    for (const char* line : {"first", "second", "comm", "optimizer", "forward", "backward"}) {
      EXPECT_GE(contrast(colour(from, line), paper), 3) << line << (from > 0 ? ", dark" : "");
    }
    EXPECT_GE(contrast(colour(from, "soft"), colour(from, "panel")), 4.5);
    for (const char* box : {"forward", "backward"}) { // a microbatch's number is white on them
      EXPECT_GE(contrast(colour(from, box), 1), 4.5) << box << (from > 0 ? ", dark" : "");
    }
  }
}

TEST(Html, NamesTheSmoothedLineWithItsWindow) {
  ReportInput input = example();
  EXPECT_THAT(to_html(input), Not(HasSubstr("smoothed")));
  input.log.steps.clear();
  for (int i = 1; i <= 600; ++i) {
    StepRecord step;
    step.step = i;
    step.loss = 5;
    input.log.steps.push_back(step);
  }
  EXPECT_THAT(
      to_html(input), HasSubstr("training, smoothed: weights halve every 4 steps to both sides"));
}

/// A legend names nothing that no picture shows.
TEST(Html, TheLegendOfThePipelineHasWhatOccurs) {
  ReportInput input = example();
  EXPECT_THAT(to_html(input), Not(HasSubstr("<i class=\"optimizer\">")));
  EXPECT_THAT(to_html(input), Not(HasSubstr("<i class=\"comm\">")));
  input.timeline.events[0].category = "optimizer";
  EXPECT_THAT(to_html(input), HasSubstr("<i class=\"optimizer\">"));
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
  torn.log.bad_lines = 3;
  torn.log.first_bad_line = "x.jsonl: line 7: not JSON";
  for (const std::string& shown : {to_html(torn), to_text(torn)}) {
    EXPECT_THAT(shown, HasSubstr("was cut off"));
    EXPECT_THAT(shown, HasSubstr("left out: 3; the first: x.jsonl: line 7: not JSON"));
  }
}

TEST(Html, SaysWhereTheLossWasLost) {
  ReportInput input = example();
  input.log.steps[13].loss = std::nan("");
  input.log.steps[13].skipped = "the loss is NaN on rank 0";
  EXPECT_THAT(to_html(input), HasSubstr("not finite at step 14"));
  EXPECT_THAT(to_html(input), HasSubstr("The update was left out at steps 14."));
}

TEST(Text, ShowsTheSameAsTables) {
  const std::string text = to_text(example());
  EXPECT_THAT(text, HasSubstr("gpt-small, 1.50 M parameters, 2 ranks"));
  EXPECT_THAT(text, HasSubstr("20 -> 5.5 (mean of steps 11 to 20)"));
  EXPECT_THAT(text, HasSubstr("best 12 at step 10, perplexity 1.628e+05"));
  EXPECT_THAT(text, HasSubstr("bubble      25.0 % (median of 20 steps, 1 to 20"));
  EXPECT_THAT(text, HasSubstr("state       finished at step 20"));
  EXPECT_THAT(text, HasSubstr("in all      10.0 k tokens in 1 min 40 s"));
  EXPECT_TRUE(std::regex_search(text, std::regex("rdp +2.00 KiB +20\n")));
  EXPECT_TRUE(std::regex_search(text, std::regex(" 20 +1 +1.00 k")));
}

} // namespace
} // namespace tessera::report
