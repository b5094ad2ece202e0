#include <thread>

#include <gtest/gtest.h>

#include "tessera/timeline/timeline.h"

namespace tessera::timeline {
namespace {

Event at(double start_us) {
  Event event;
  event.name = "layer";
  event.category = "forward";
  event.start_us = start_us;
  event.end_us = start_us + 1;
  return event;
}

TEST(Recorder, KeepsNothingUntilEnabled) {
  Recorder recorder(3, 1);
  recorder.add(at(0));
  EXPECT_FALSE(recorder.enabled());
  EXPECT_TRUE(recorder.take().empty());
  recorder.enable(true);
  recorder.add(at(0));
  recorder.enable(false);
  recorder.add(at(1));
  EXPECT_EQ(recorder.take().size(), 1U);
}

TEST(Recorder, FillsInItsRankAndSorts) {
  Recorder recorder(3, 1);
  recorder.enable(true);
  recorder.add(at(5));
  recorder.add(at(2));
  const auto events = recorder.take();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].start_us, 2);
  EXPECT_EQ(events[0].rank, 3);
  EXPECT_EQ(events[0].pp_rank, 1);
  EXPECT_TRUE(recorder.take().empty());
}

TEST(Recorder, IsBoundedAndCountsWhatItRefused) {
  Recorder recorder(0, 0, 3);
  recorder.enable(true);
  for (int i = 0; i < 10; ++i) {
    recorder.add(at(i));
  }
  EXPECT_EQ(recorder.dropped(), 7U);
  const auto events = recorder.take();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events.back().start_us, 2);
  EXPECT_EQ(recorder.dropped(), 0U);
  recorder.add(at(11));
  EXPECT_EQ(recorder.take().size(), 1U);
}

TEST(Recorder, LosesNoEventOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  Recorder recorder(0, 0);
  recorder.enable(true);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&recorder] {
      for (int i = 0; i < kEach; ++i) {
        recorder.add(at(recorder.now_us()));
      }
    });
  }
  std::size_t taken = 0;
  for (int i = 0; i < 100; ++i) {
    taken += recorder.take().size();
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(taken + recorder.take().size(), std::size_t{kThreads} * kEach);
}

TEST(Span, IsOneEventOfItsScopeWhileTheRecorderIsOn) {
  Recorder recorder(3, 1);
  { const Span span(recorder, "nobody looks", "optimizer"); }
  recorder.enable(true);
  const double before_us = recorder.now_us();
  EXPECT_THROW(
      {
        const Span span(recorder, "optimizer step", "optimizer", 7);
        throw 1;
      },
      int);
  const double after_us = recorder.now_us();
  const auto events = recorder.take();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "optimizer step");
  EXPECT_EQ(events[0].category, "optimizer");
  EXPECT_EQ(events[0].step, 7);
  EXPECT_EQ(events[0].rank, 3);
  EXPECT_LE(before_us, events[0].start_us);
  EXPECT_LE(events[0].start_us, events[0].end_us);
  EXPECT_LE(events[0].end_us, after_us);
}

TEST(Recorder, SharesTheClockOfItsNodeUntilItsOriginIsSet) {
  Recorder first(0, 0);
  Recorder second(1, 1);
  const double before_us = first.now_us();
  const double between_us = second.now_us();
  const double after_us = first.now_us();
  EXPECT_LE(before_us, between_us);
  EXPECT_LE(between_us, after_us);
  first.set_origin();
  const double since_us = first.now_us();
  EXPECT_GE(since_us, 0);
  EXPECT_LT(since_us, 10e6);
}

} // namespace
} // namespace tessera::timeline
