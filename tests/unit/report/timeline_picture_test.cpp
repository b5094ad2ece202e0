#include "tessera/report/timeline_picture.h"

#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::report {
namespace {

using timeline::Event;
using timeline::Timeline;

Event event(
    const std::string& category,
    int rank,
    int microbatch,
    double start_us,
    double end_us,
    int lane = 0) {
  Event result;
  result.name = "layer";
  result.category = category;
  result.rank = rank;
  result.pp_rank = rank;
  result.microbatch = microbatch;
  result.step = 0;
  result.lane = lane;
  result.start_us = start_us;
  result.end_us = end_us;
  return result;
}

struct Box {
  std::string style;
  double x = 0;
  double y = 0;
  double width = 0;
};

std::vector<Box> boxes_of(const std::string& svg) {
  std::vector<Box> boxes;
  const std::regex pattern(
      "<rect class=\"((?:forward|backward|comm|optimizer)(?: odd)?)\" "
      "x=\"([0-9.]+)%\" y=\"([0-9.]+)\" width=\"([0-9.]+)%\"");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    boxes.push_back({(*it)[1], std::stod((*it)[2]), std::stod((*it)[3]), std::stod((*it)[4])});
  }
  return boxes;
}

TEST(TimelinePicture, DrawsABoxForEachMicrobatchAtItsTime) {
  Timeline timeline;
  timeline.world_size = 2;
  timeline.events = {
      event("forward", 0, 0, 0, 100),
      event("forward", 1, 0, 100, 200),
      event("backward", 1, 1, 200, 400)};
  const std::string svg = timeline_picture(timeline, 0);
  const auto boxes = boxes_of(svg);
  ASSERT_EQ(boxes.size(), 3U);
  // In the order of rank, category, microbatch.
  EXPECT_EQ(boxes[0].style, "forward");
  EXPECT_EQ(boxes[1].style, "backward odd");
  EXPECT_EQ(boxes[2].style, "forward");
  EXPECT_NEAR(boxes[1].width, 2 * boxes[0].width, 0.01);
  EXPECT_NEAR(boxes[2].x, boxes[0].x + boxes[0].width, 0.01);
  EXPECT_NEAR(boxes[1].x, boxes[2].x + boxes[2].width, 0.01);
  EXPECT_LT(boxes[0].y, boxes[1].y);
  EXPECT_EQ(boxes[1].y, boxes[2].y);
  EXPECT_THAT(svg, testing::HasSubstr("rank 1 <i>(pp 1)</i>"));
  EXPECT_THAT(svg, testing::HasSubstr("backward of microbatch 1 on rank 1"));
}

TEST(TimelinePicture, JoinsTheModulesOfARequest) {
  Timeline timeline;
  timeline.events = {
      event("forward", 0, 0, 0, 100),
      event("forward", 0, 0, 0, 40), // nested
      event("forward", 0, 0, 100.01, 200), // the next module
      event("forward", 0, 0, 500, 600)}; // a second request
  EXPECT_EQ(boxes_of(timeline_picture(timeline, 0)).size(), 2U);
}

TEST(TimelinePicture, CutsWaitsOutOfTheirLane) {
  Timeline timeline;
  timeline.events = {
      event("forward", 0, 0, 0, 1000),
      event("wait", 0, 0, 200, 800),
      event("backward", 0, 0, 200, 800, 1)};
  EXPECT_EQ(boxes_of(timeline_picture(timeline, 0)).size(), 3U);
}

TEST(TimelinePicture, DrawsASimulationBelowEveryRank) {
  Timeline timeline;
  timeline.events = {event("forward", 0, 0, 1000, 1100), event("forward", 1, 0, 1100, 1200)};
  Timeline simulated;
  simulated.origin = "simulated";
  simulated.events = {event("forward", 0, 0, 0, 200), event("forward", 1, 0, 200, 400)};
  simulated.events[0].step = simulated.events[1].step = 7; // its own count
  const std::string html = timeline_picture(timeline, 0, simulated);
  const auto boxes = boxes_of(html);
  ASSERT_EQ(boxes.size(), 4U); // those of the run, then those of the simulation
  EXPECT_EQ(boxes[0].x, 0);
  EXPECT_EQ(boxes[2].x, 0); // both begin at once
  EXPECT_NEAR(boxes[0].width, 25, 0.01); // of the longer of the two
  EXPECT_NEAR(boxes[2].width, 50, 0.01);
  EXPECT_LT(boxes[0].y, boxes[2].y);
  EXPECT_LT(boxes[2].y, boxes[1].y); // rank 0, its simulation, rank 1, its simulation
  EXPECT_LT(boxes[1].y, boxes[3].y);
  EXPECT_THAT(html, testing::HasSubstr("simulated forward of microbatch 0 on rank 1"));
  EXPECT_EQ(drawn_us(timeline, 0), 200);
  EXPECT_EQ(drawn_us(simulated, 7), 400);
}

TEST(TimelinePicture, RefusesASimulationOfOtherRanksOrSeveralSteps) {
  Timeline timeline;
  timeline.events = {event("forward", 0, 0, 0, 100), event("forward", 1, 0, 100, 200)};
  Timeline fewer = timeline;
  fewer.events.pop_back();
  EXPECT_THROW(timeline_picture(timeline, 0, fewer), Error);
  Timeline more = timeline;
  more.events[1].step = 1;
  EXPECT_THROW(timeline_picture(timeline, 0, more), Error);
}

TEST(TimelinePicture, CountsTheBoxesItLeavesOut) {
  Timeline timeline;
  for (int i = 0; i < 10; ++i) {
    timeline.events.push_back(event("forward", 0, i, i * 100, i * 100 + 10 + i));
  }
  PictureOptions options;
  options.most_boxes = 4;
  const std::string svg = timeline_picture(timeline, 0, options);
  EXPECT_EQ(boxes_of(svg).size(), 4U);
  EXPECT_THAT(svg, testing::HasSubstr("The 6 shortest of 10 boxes"));
}

TEST(TimelinePicture, DrawsWhatIsNoComputationAndSaysWhatItWas) {
  Timeline timeline;
  timeline.events = {
      event("forward", 0, 0, 0, 500),
      event("comm", 0, -1, 500, 800),
      event("optimizer", 0, -1, 800, 1000)};
  timeline.events[1].name = "gradient averaging";
  timeline.events[2].name = "optimizer step";
  const std::string html = timeline_picture(timeline, 0);
  const auto boxes = boxes_of(html);
  ASSERT_EQ(boxes.size(), 3U);
  EXPECT_GT(boxes[0].y, boxes[1].y); // communication: below the row
  EXPECT_THAT(
      html,
      testing::HasSubstr("communication: gradient averaging on rank 0: from 0.5 ms for 300 us"));
  EXPECT_THAT(html, testing::HasSubstr("optimizer: optimizer step on rank 0"));
}

TEST(TimelinePicture, ALegendHasWhatOccursOnly) {
  Timeline timeline;
  timeline.events = {event("backward", 0, 0, 0, 1), event("forward", 0, 0, 1, 2)};
  EXPECT_THAT(drawn_categories(timeline), testing::ElementsAre("forward", "backward"));
  timeline.events.push_back(event("comm", 0, -1, 2, 3));
  EXPECT_THAT(drawn_categories(timeline), testing::ElementsAre("forward", "backward", "comm"));
}

/// Numbers that fit only in a wider drawing appear from that zoom on.
TEST(TimelinePicture, NumbersShowFromTheZoomAtWhichTheyFit) {
  Timeline timeline;
  timeline.events = {
      event("forward", 0, 0, 0, 900), // nine tenths
      event("forward", 0, 1, 900, 908), // 5 of 640 pixels, 20 at zoom 4
      event("forward", 0, 2, 999.9, 1000)};
  const std::string html = timeline_picture(timeline, 0);
  EXPECT_THAT(html, testing::HasSubstr("class=\"batch\""));
  EXPECT_THAT(html, testing::HasSubstr("class=\"batch odd from4\""));
  EXPECT_THAT(html, testing::Not(testing::HasSubstr(">2</text>")));
}

TEST(TimelinePicture, RefusesAStepWithoutEvents) {
  EXPECT_THROW(timeline_picture(Timeline{}, 0), Error);
}

TEST(TimelinePicture, AnEventOfNoLengthIsNoBoxAndNoError) {
  Timeline timeline;
  timeline.events = {event("forward", 0, 0, 5, 5)};
  const std::string svg = timeline_picture(timeline, 0);
  EXPECT_TRUE(boxes_of(svg).empty());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

} // namespace
} // namespace tessera::report
