#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/timeline/timeline.h"

namespace tessera::timeline {
namespace {

Timeline example() {
  Timeline timeline;
  timeline.world_size = 4;
  timeline.origin = "simulated";
  timeline.run_id = "cafe";
  timeline.events = {
      {"layers.3", "forward", 2, 1, 0, 7, 1, 0.125, 10.5, 0},
      {"all_reduce \"dp\"\n", "comm", 3, 1, -1, 7, 0, 11, 12, 4096}};
  return timeline;
}

std::string error_of(const std::string& text) {
  try {
    timeline_from_json(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The example as JSON with one field of the first event changed.
std::string with(const std::string& field, const nlohmann::json& value) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["events"][0][field] = value;
  return json.dump();
}

TEST(TimelineJson, ComesBackAsItWas) {
  const Timeline there = example();
  const Timeline back = timeline_from_json(to_json(there));
  EXPECT_EQ(back.world_size, 4);
  EXPECT_EQ(back.run_id, "cafe");
  EXPECT_EQ(back.origin, "simulated");
  ASSERT_EQ(back.events.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back.events[i].name, there.events[i].name);
    EXPECT_EQ(back.events[i].category, there.events[i].category);
    EXPECT_EQ(back.events[i].rank, there.events[i].rank);
    EXPECT_EQ(back.events[i].pp_rank, there.events[i].pp_rank);
    EXPECT_EQ(back.events[i].microbatch, there.events[i].microbatch);
    EXPECT_EQ(back.events[i].step, there.events[i].step);
    EXPECT_EQ(back.events[i].lane, there.events[i].lane);
    EXPECT_EQ(back.events[i].start_us, there.events[i].start_us);
    EXPECT_EQ(back.events[i].end_us, there.events[i].end_us);
    EXPECT_EQ(back.events[i].bytes, there.events[i].bytes);
  }
  EXPECT_EQ(to_json(back), to_json(there));
}

/// Timelines of earlier versions and simulated ones have none.
TEST(TimelineJson, NeedsNoRunId) {
  Timeline there = example();
  there.run_id = "";
  EXPECT_EQ(to_json(there).find("run_id"), std::string::npos);
  EXPECT_EQ(timeline_from_json(to_json(there)).run_id, "");
}

TEST(TimelineJson, RefusesWhatItDoesNotUnderstand) {
  using testing::HasSubstr;
  EXPECT_THAT(error_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("'format' is missing"));
  EXPECT_THAT(
      error_of(with("rank", 4)),
      HasSubstr("'events[0].rank' must be an integer from 0 to 3, found 4"));
  EXPECT_THAT(error_of(with("rank", 1.5)), HasSubstr("found 1.5"));
  EXPECT_THAT(error_of(with("step", -2)), HasSubstr("events[0].step'"));
  EXPECT_THAT(error_of(with("bytes", UINT64_MAX)), HasSubstr("events[0].bytes'"));
  EXPECT_THAT(error_of(with("end_us", 0)), HasSubstr("is before 'start_us' 0.125"));
  EXPECT_THAT(error_of(with("start_us", "soon")), HasSubstr("found \"soon\""));
  EXPECT_THAT(error_of(with("colour", "red")), HasSubstr("unknown field 'events[0].colour'"));
  auto json = nlohmann::json::parse(to_json(example()));
  json["events"][1].erase("lane");
  EXPECT_THAT(error_of(json.dump()), HasSubstr("field 'events[1].lane' is missing"));
  json = nlohmann::json::parse(to_json(example()));
  json["version"] = 2;
  EXPECT_THAT(
      error_of(json.dump()),
      HasSubstr("'version' is 2; this program reads version 1, use the one"));
  json["version"] = 1;
  json["origin"] = "guessed";
  EXPECT_THAT(error_of(json.dump()), HasSubstr("found \"guessed\""));
}

TEST(TimelineJson, RefusesANumberThatNoDoubleHolds) {
  EXPECT_THROW(timeline_from_json("[1e999]"), Error);
}

TEST(TimelineJson, RefusesToWriteTimesThatAreNotFinite) {
  Timeline timeline = example();
  timeline.events[0].end_us = std::numeric_limits<double>::infinity();
  EXPECT_THROW(to_json(timeline), Error);
}

TEST(ChromeTrace, HasOneCompleteEventEach) {
  const auto trace = nlohmann::json::parse(to_chrome_trace(example()));
  std::vector<nlohmann::json> complete;
  std::vector<std::string> processes;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      complete.push_back(event);
    } else if (event.at("name") == "process_name") {
      processes.push_back(event.at("args").at("name"));
    }
  }
  EXPECT_THAT(processes, testing::ElementsAre("rank 2 (pp 1)", "rank 3 (pp 1)"));
  ASSERT_EQ(complete.size(), 2U);
  EXPECT_EQ(complete[0].at("pid"), 2);
  EXPECT_EQ(complete[0].at("tid"), 1);
  EXPECT_EQ(complete[0].at("ts"), 0.125);
  EXPECT_EQ(complete[0].at("dur"), 10.375);
  EXPECT_EQ(complete[0].at("args").at("microbatch"), 0);
  EXPECT_EQ(complete[1].at("args").at("bytes"), 4096);
  EXPECT_FALSE(complete[1].at("args").contains("microbatch"));
}

TEST(ChromeTrace, SurvivesNamesThatAreNoUtf8) {
  Timeline timeline = example();
  timeline.events[0].name = "bad \xff name";
  EXPECT_TRUE(nlohmann::json::accept(to_chrome_trace(timeline)));
  EXPECT_NO_THROW(timeline_from_json(to_json(timeline)));
}

} // namespace
} // namespace tessera::timeline
