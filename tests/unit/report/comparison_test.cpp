#include "tessera/report/compare/comparison.h"

#include <cmath>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/report/positions.h"

namespace tessera::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kMarkup = "<script>alert('x')</script>\"&";

/// A run of `steps` steps with losses `loss`, `loss` - 0.1 ... and one start.
ComparedRun run(const std::string& name, int steps, double loss) {
  ComparedRun result{name, {}};
  RunFacts& facts = result.log.run;
  facts.run_id = name;
  facts.model = "gpt-small";
  facts.started = "2026-01-02T03:04:05Z";
  facts.data = "corpus";
  facts.world_size = 2;
  facts.tokens_per_step = 1000;
  facts.steps = 20;
  facts.config_json =
      "{\"steps\": 20, \"optimizer\": {\"learning_rate\": 0.001, \"betas\": [0.9]}}";
  for (int i = 0; i < steps; ++i) {
    StepRecord step;
    step.step = i + 1;
    step.loss = loss - 0.1 * i;
    step.tokens_per_second = 500;
    step.step_seconds = 2;
    step.elapsed_seconds = 2.0 * (i + 1);
    step.memory_bytes = {1024, 2048};
    result.log.steps.push_back(step);
  }
  result.log.validations = {{steps / 2, loss}, {steps, loss - 1}};
  result.log.starts = {{facts, EndRecord{"finished", steps, 2.0 * steps, ""}, steps, 2.0 * steps}};
  return result;
}

std::vector<std::string> values_of(const std::vector<ComparedRow>& rows, const std::string& name) {
  for (const ComparedRow& row : rows) {
    if (row.name.find(name) == 0) {
      return row.values;
    }
  }
  return {};
}

TEST(Positions, CountTokensAndTimeOverRestarts) {
  RunLog log = run("a", 6, 5).log;
  EXPECT_EQ(positions(log).back().tokens, 6000);
  EXPECT_EQ(positions(log).back().seconds, 12);
  // The first start ran until 9 s; the second began again with step 4.
  Start again = log.starts[0];
  again.facts.first_step = 4;
  again.facts.tokens_per_step = 2000;
  log.starts[0].elapsed_seconds = 9;
  log.starts.push_back(again);
  log.steps[3].elapsed_seconds = 1.5;
  log.steps[4].elapsed_seconds.reset();
  const auto all = positions(log);
  EXPECT_EQ(all[2].start, 0U);
  EXPECT_EQ(all[2].seconds, 6);
  EXPECT_EQ(all[3].start, 1U);
  EXPECT_EQ(all[3].tokens, 5000);
  EXPECT_EQ(all[3].seconds, 10.5);
  EXPECT_FALSE(all[4].seconds);
  EXPECT_EQ(all[5].tokens, 9000);
  log.starts.clear();
  EXPECT_EQ(positions(log).size(), 6U);
  EXPECT_EQ(positions(log).back().tokens, 0);
}

TEST(Comparison, PutsFiguresBesideEachOther) {
  Comparison comparison{{run("a", 20, 9), run("b", 15, 8)}, {}};
  comparison.runs[1].log.starts[0].end.reset();
  comparison.runs[1].log.steps[2].skipped = "overflow";
  const auto figures = final_figures(comparison);
  EXPECT_THAT(values_of(figures, "end"), ElementsAre("finished", "no end recorded"));
  EXPECT_THAT(values_of(figures, "last step"), ElementsAre("20 of 20", "15 of 20"));
  // Means of steps 11 to 20 and of 6 to 15; of both at step 15.
  EXPECT_THAT(values_of(figures, "training loss, mean"), ElementsAre("7.55", "7.05"));
  EXPECT_THAT(values_of(figures, "training loss at step 15"), ElementsAre("8.05", "7.05"));
  EXPECT_THAT(values_of(figures, "best validation"), ElementsAre("8 (step 20)", "7 (step 15)"));
  EXPECT_THAT(values_of(figures, "tokens per second"), ElementsAre("500", "500"));
  EXPECT_THAT(values_of(figures, "wall time"), ElementsAre("40.0 s", "30.0 s"));
  EXPECT_THAT(values_of(figures, "tokens trained on"), ElementsAre("20.0 k", "15.0 k"));
  EXPECT_THAT(values_of(figures, "most memory"), ElementsAre("2.00 KiB", "2.00 KiB"));
  EXPECT_THAT(values_of(figures, "memory of all"), ElementsAre("3.00 KiB", "3.00 KiB"));
  EXPECT_THAT(values_of(figures, "restarts"), ElementsAre("0", "0"));
  EXPECT_THAT(values_of(figures, "updates left out"), ElementsAre("-", "1"));
  EXPECT_THAT(values_of(figures, "pipeline bubble"), IsEmpty()); // no log has one
}

TEST(Comparison, RunsWithoutACommonStepHaveNoCommonLoss) {
  Comparison comparison{{run("a", 5, 9), run("b", 10, 8)}, {}};
  auto& steps = comparison.runs[1].log.steps;
  steps.erase(steps.begin(), steps.begin() + 5);
  EXPECT_THAT(values_of(final_figures(comparison), "training loss at"), IsEmpty());
  EXPECT_THAT(remarks(comparison), ElementsAre(HasSubstr("B: The log begins with step 6")));
}

TEST(Comparison, ListsWhatDiffersAndNothingElse) {
  Comparison comparison{{run("a", 5, 9), run("b", 5, 9)}, {}};
  EXPECT_THAT(differences(comparison).facts, IsEmpty());
  EXPECT_THAT(differences(comparison).configuration, IsEmpty());
  RunFacts& other = comparison.runs[1].log.run;
  other.world_size = 4;
  // 20.0 is 20; the other two differ, and one key is in one run alone.
  other.config_json =
      "{\"steps\": 20.0, \"optimizer\": {\"learning_rate\": 0.002, \"betas\": [0.9, 1]}, \"x\": "
      "{}}";
  const Differences different = differences(comparison);
  ASSERT_EQ(different.facts.size(), 1U);
  EXPECT_THAT(values_of(different.facts, "ranks"), ElementsAre("2", "4"));
  ASSERT_EQ(different.configuration.size(), 3U);
  EXPECT_THAT(
      values_of(different.configuration, "optimizer.learning_rate"), ElementsAre("0.001", "0.002"));
  EXPECT_THAT(
      values_of(different.configuration, "optimizer.betas"), ElementsAre("[0.9]", "[0.9,1]"));
  EXPECT_THAT(values_of(different.configuration, "x"), ElementsAre("-", "{}"));
  // Nothing is concluded from a log without configuration.
  comparison.runs[0].log.run.config_json = "";
  EXPECT_THAT(differences(comparison).configuration, IsEmpty());
  comparison.runs.push_back(run("c", 5, 9));
  EXPECT_THAT(
      values_of(differences(comparison).configuration, "optimizer.learning_rate"),
      ElementsAre("unknown", "0.002", "0.001"));
  EXPECT_THAT(to_html(comparison), HasSubstr("A: The log has no configuration."));
}

TEST(Comparison, RefusesOneRunManyRunsAndCopies) {
  const auto refused = [](const Comparison& comparison) {
    try {
      to_html(comparison);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("shown");
  };
  EXPECT_THAT(refused({{run("a", 5, 9)}, {}}), HasSubstr("2 to 8 runs; these are 1"));
  Comparison many;
  for (int i = 0; i < 9; ++i) {
    many.runs.push_back(run(std::string(1, static_cast<char>('a' + i)), 5, 9));
  }
  EXPECT_THAT(refused(many), HasSubstr("these are 9"));
  many.runs.pop_back();
  EXPECT_EQ(refused(many), "shown");
  many.runs[7].log.run.run_id = "c";
  EXPECT_THAT(refused(many), HasSubstr("'c' and 'h' hold the same run, c"));
  many.runs[2].log.run.run_id = many.runs[7].log.run.run_id = ""; // old logs have no ids
  EXPECT_EQ(refused(many), "shown");
}

TEST(ComparisonPage, DrawsLossesOverStepsTokensAndTime) {
  Comparison comparison{{run("runs/a", 20, 9), run("runs/b", 15, 8)}, {}};
  const std::string page = to_html(comparison);
  EXPECT_THAT(page, HasSubstr("<h1>Comparison of 2 runs</h1>"));
  for (const char* what : {"Training loss", "Validation loss"}) {
    for (const char* axis : {"over steps", "over tokens", "over time"}) {
      EXPECT_THAT(page, HasSubstr(std::string(what) + ", nats per token, " + axis));
    }
  }
  EXPECT_THAT(page, HasSubstr("wall time of all starts, seconds"));
  EXPECT_THAT(page, HasSubstr("step 15: A 7.6, B 6.6"));
  EXPECT_THAT(page, HasSubstr("tokens 15.0 k: A 7.6, B 6.6"));
  EXPECT_THAT(page, HasSubstr("seconds 30: A 7.6, B 6.6"));
  // Beyond its end a run has no value.
  EXPECT_THAT(page, HasSubstr("step 20: A 7.1</text>"));
  EXPECT_THAT(page, HasSubstr("class=\"run-b\""));
  EXPECT_THAT(page, Not(HasSubstr("class=\"run-c\"")));
}

TEST(ComparisonPage, SaysWhatItDoesNotShow) {
  Comparison comparison{{run("a", 5, 9), run("b", 5, 8), run("c", 0, 0)}, {}};
  for (StepRecord& step : comparison.runs[1].log.steps) {
    step.elapsed_seconds.reset();
  }
  comparison.runs[0].log.starts[0].facts.tokens_per_step = 0;
  comparison.runs[0].log.steps[2].loss = std::nan("");
  comparison.runs[1].log.torn = true;
  comparison.runs[1].log.run.data = "other";
  comparison.runs[2].log.validations.clear();
  for (const std::string& shown : {to_html(comparison), to_text(comparison)}) {
    EXPECT_THAT(shown, HasSubstr("A: The training loss was not finite at step 3."));
    EXPECT_THAT(shown, HasSubstr("B: The last line of the log was cut off and is left out."));
    EXPECT_THAT(shown, HasSubstr("C: The log has no steps yet."));
    EXPECT_THAT(shown, HasSubstr("The runs name different data."));
  }
  const std::string page = to_html(comparison);
  EXPECT_THAT(page, HasSubstr("the log has no times: B, C"));
  EXPECT_THAT(page, HasSubstr("the log does not say how many tokens a step has: A, C"));
  // Times that begin again, because a run line was lost, are no line of the chart.
  comparison.runs[0].log.steps[4].elapsed_seconds = 1;
  EXPECT_THAT(to_html(comparison), HasSubstr("A: 1 steps are left out over time"));
}

/// Values of eight runs do not fit in one line of a narrow screen.
TEST(ComparisonPage, ReadsOutManyRunsInSeveralLines) {
  Comparison comparison;
  for (int i = 0; i < 8; ++i) {
    comparison.runs.push_back(run(std::string(1, static_cast<char>('a' + i)), 5, 9));
  }
  EXPECT_THAT(
      to_html(comparison),
      HasSubstr("y=\"-20\">step 5: A 8.6, B 8.6, C 8.6, D 8.6</text><text text-anchor=\"end\" "
                "x=\"100%\" y=\"-7\">E 8.6, F 8.6, G 8.6, H 8.6</text>"));
}

TEST(ComparisonPage, FetchesNothingAndEscapesAllThatAUserWrote) {
  Comparison comparison{{run(kMarkup, 5, 9), run("b", 5, 8)}, {}};
  RunFacts& facts = comparison.runs[0].log.run;
  facts.model = facts.data = facts.started = facts.precision = facts.schedule = kMarkup;
  facts.program = kMarkup;
  facts.hosts = {kMarkup};
  facts.config_json = "{\"<script>alert('x')\": \"<script>alert('x')\"}";
  comparison.runs[0].log.starts[0].end = EndRecord{"failed", 1, 1, kMarkup};
  comparison.runs[0].log.first_bad_line = kMarkup;
  comparison.runs[0].log.bad_lines = 1;
  const std::string page = to_html(comparison);
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy"));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)"));
  for (const char* bad : {"<script", "alert('x')", "http://", "https://", "<link", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(bad)));
  }
}

/// In both colour schemes every run's line is 3 to 1 against the paper, and no two are alike.
TEST(ComparisonPage, ColoursCanBeReadInBothSchemes) {
  const std::string page = to_html(Comparison{{run("a", 5, 9), run("b", 5, 8)}, {}});
  const auto colour = [&page](std::size_t from, const std::string& name) {
    const std::size_t at = page.find("--" + name + ": #", from);
    EXPECT_NE(at, std::string::npos) << name;
    std::string hex = page.substr(at + name.size() + 5, 6);
    return hex[3] == ';' ? std::string{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]} : hex;
  };
  const auto luminance = [](const std::string& hex) {
    double sum = 0;
    const double weights[] = {0.2126, 0.7152, 0.0722};
    for (int i = 0; i < 3; ++i) {
      const double value = std::stoi(hex.substr(2 * i, 2), nullptr, 16) / 255.0;
      sum +=
          weights[i] * (value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4));
    }
    return sum;
  };
  const std::size_t light = page.find("--run-a");
  const std::size_t dark = page.find("--run-a: #", light + 1);
  const std::size_t dark_paper = page.find("@media (prefers-color-scheme: dark)");
  for (const auto& [from, paper_from] :
       {std::pair{light, std::size_t{0}}, std::pair{dark, dark_paper}}) {
    const double paper = luminance(colour(paper_from, "paper"));
    std::set<std::string> all;
    for (const char run : {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}) {
      const std::string hex = colour(from, std::string("run-") + run);
      const double here = luminance(hex);
      EXPECT_GE((std::max(here, paper) + 0.05) / (std::min(here, paper) + 0.05), 3) << hex;
      all.insert(hex);
    }
    EXPECT_EQ(all.size(), kMostComparedRuns);
  }
}

TEST(ComparisonText, HasTheSameTables) {
  Comparison comparison{{run("runs/a", 20, 9), run("runs/b", 15, 8)}, {}};
  comparison.runs[1].log.run.world_size = 4;
  const std::string text = to_text(comparison);
  EXPECT_TRUE(std::regex_search(text, std::regex("A +runs/a +gpt-small +2 ranks: 1 pp")));
  EXPECT_TRUE(std::regex_search(text, std::regex("wall time +40.0 s +30.0 s\n")));
  EXPECT_TRUE(std::regex_search(text, std::regex("ranks +2 +4\n")));
}

} // namespace
} // namespace tessera::report
