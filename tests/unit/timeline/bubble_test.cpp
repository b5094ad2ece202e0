#include <gtest/gtest.h>

#include "tessera/timeline/timeline.h"

namespace tessera::timeline {
namespace {

Event event(
    const std::string& category,
    int rank,
    int step,
    double start_us,
    double end_us,
    int lane = 0) {
  Event result;
  result.name = category;
  result.category = category;
  result.rank = rank;
  result.pp_rank = rank;
  result.step = step;
  result.lane = lane;
  result.start_us = start_us;
  result.end_us = end_us;
  return result;
}

/// Every forward takes 1, every backward 1, all forwards before all backwards.
Timeline gpipe(int stages, int microbatches) {
  Timeline timeline;
  timeline.world_size = stages;
  const int forward_end = stages + microbatches - 1;
  for (int rank = 0; rank < stages; ++rank) {
    for (int m = 0; m < microbatches; ++m) {
      timeline.events.push_back(event("forward", rank, 0, rank + m, rank + m + 1));
      const int start = forward_end + stages - 1 - rank + m;
      timeline.events.push_back(event("backward", rank, 0, start, start + 1));
    }
  }
  return timeline;
}

TEST(BubbleShare, IsTheFormulaOfGPipe) {
  for (const int stages : {1, 2, 4, 8}) {
    for (const int microbatches : {1, 4, 16}) {
      EXPECT_NEAR(
          bubble_share(gpipe(stages, microbatches)),
          double(stages - 1) / (microbatches + stages - 1),
          1e-12)
          << stages << " stages, " << microbatches << " microbatches";
    }
  }
}

TEST(BubbleShare, IsZeroWithoutComputation) {
  EXPECT_EQ(bubble_share(Timeline{}), 0);
  Timeline timeline;
  timeline.events = {event("comm", 0, 0, 0, 5)};
  EXPECT_EQ(bubble_share(timeline), 0);
}

TEST(BubbleShare, CountsOverlapsOnce) {
  Timeline timeline;
  timeline.events = {
      event("forward", 0, 0, 0, 10),
      event("forward", 0, 0, 2, 4), // nested module
      event("backward", 0, 0, 5, 12, 1)};
  EXPECT_DOUBLE_EQ(bubble_share(timeline), 0);
}

TEST(BubbleShare, TakesWaitsOfTheSameLaneOut) {
  Timeline timeline;
  timeline.events = {
      event("forward", 0, 0, 0, 10),
      event("wait", 0, 0, 2, 4),
      event("wait", 0, 0, 3, 6),
      event("wait", 0, 0, 9, 11)};
  EXPECT_DOUBLE_EQ(bubble_share(timeline), 0.5);
  for (Event& one : timeline.events) {
    one.lane = one.category == "wait" ? 1 : 0;
  }
  EXPECT_DOUBLE_EQ(bubble_share(timeline), 0);
}

TEST(BubbleShare, CountsRanksThatComputedNothing) {
  Timeline timeline;
  timeline.world_size = 2;
  timeline.events = {event("forward", 0, 0, 0, 10), event("comm", 1, 0, 0, 10)};
  EXPECT_DOUBLE_EQ(bubble_share(timeline), 0.5);
}

TEST(BubbleShare, LeavesTimeBetweenStepsOut) {
  Timeline timeline;
  timeline.world_size = 2;
  timeline.events = {
      event("forward", 0, 1, 0, 10),
      event("forward", 1, 1, 0, 10), // no bubble
      event("forward", 0, 2, 1000, 1030),
      event("forward", 1, 2, 1000, 1010)}; // idle 20 of 60
  EXPECT_DOUBLE_EQ(bubble_share(timeline, 1), 0);
  EXPECT_DOUBLE_EQ(bubble_share(timeline, 2), 20.0 / 60);
  EXPECT_DOUBLE_EQ(bubble_share(timeline), 20.0 / 80);
  EXPECT_DOUBLE_EQ(bubble_share(timeline, 3), 0);
  EXPECT_EQ(steps(timeline), (std::vector<int>{1, 2}));
}

} // namespace
} // namespace tessera::timeline
