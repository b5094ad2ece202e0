// Which parameters are gathered when, by whom, and which are let go.
#include "tessera/sharding/live_table.h"

#include <memory>
#include <thread>

#include <gmock/gmock.h>

#include "tessera/ipc/segment.h"

namespace tessera::sharding {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A table and what it has let go.
struct Table {
  Table(const std::vector<std::int64_t>& sizes, std::int64_t most)
      : memory(ipc::Segment::heap(LiveTable::bytes_for(sizes.size()))),
        table(memory.data(), sizes, most, [this](int index) { released.push_back(index); }) {
    table.make();
  }
  /// Begins to read; what is to be fetched is there at once. Returns what was fetched.
  std::vector<int> begin(const std::vector<int>& read, const std::vector<int>& next = {}) {
    table.begin_reading(read, expected, next);
    expected = next;
    std::vector<int> fetched;
    for (;;) {
      const LiveTable::Claim claim = table.claim(read, next);
      for (const int index : claim.fetch) {
        fetched.push_back(index);
        table.arrived(index);
      }
      if (claim.ready) {
        return fetched;
      }
    }
  }
  std::vector<int> read(const std::vector<int>& parameters, const std::vector<int>& next = {}) {
    const std::vector<int> fetched = begin(parameters, next);
    table.end_reading(parameters);
    return fetched;
  }
  std::int64_t live() const {
    return table.counts().live_elements;
  }
  ipc::Segment memory;
  std::vector<int> released;
  std::vector<int> expected;
  LiveTable table;
};

TEST(LiveTable, WhatIsReadIsFetchedAndStays) {
  Table of({10, 10, 10}, 100);
  EXPECT_THAT(of.read({0, 2}), ElementsAre(0, 2));
  EXPECT_THAT(of.read({2}), IsEmpty());
  EXPECT_EQ(of.live(), 20);
  of.table.forget(); // values change
  EXPECT_EQ(of.live(), 0);
  EXPECT_THAT(of.released, ElementsAre(0, 2));
  EXPECT_THAT(of.read({2}), ElementsAre(2));
}

TEST(LiveTable, WhatComesNextIsFetchedAhead) {
  Table of(std::vector<std::int64_t>(6, 10), 1000);
  EXPECT_THAT(of.read({3}, {1, 4, 0}), ElementsAre(3, 1, 4, 0));
  EXPECT_THAT(of.read({1}, {4, 0, 5}), ElementsAre(5));
  EXPECT_EQ(of.table.counts().fetches, 5);
  EXPECT_EQ(of.table.counts().ahead, 4);
}

// Each one before its reader comes, both ways; what is there at the turn is not fetched again.
TEST(LiveTable, TheOtherWayBack) {
  Table of(std::vector<std::int64_t>(6, 10), 20);
  const std::vector<int> order = {0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0};
  std::vector<int> fetched;
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::vector<int> next;
    if (i + 1 < order.size()) {
      next.push_back(order[i + 1]);
    }
    for (const int one : of.read({order[i]}, next)) {
      fetched.push_back(one);
    }
    EXPECT_LE(of.live(), 20);
  }
  EXPECT_THAT(fetched, ElementsAre(0, 1, 2, 3, 4, 5, 3, 2, 1, 0));
  EXPECT_EQ(of.table.counts().highest_elements, 20);
}

TEST(LiveTable, FetchingAheadPausesAtTheCap) {
  Table of({10, 10, 50, 10}, 40);
  EXPECT_THAT(of.begin({0}, {1, 2, 3}), ElementsAre(0, 1)); // 2 does not fit, and 3 comes after it
  of.table.end_reading({0});
  EXPECT_THAT(of.released, IsEmpty()); // nothing goes for what does not fit
  EXPECT_THAT(of.begin({2}, {3}), ElementsAre(2)); // above the cap while it is read
  EXPECT_THAT(of.released, ElementsAre(1, 0)); // what was fetched in vain first
  EXPECT_EQ(of.live(), 50);
  of.table.end_reading({2}); // and no longer
  EXPECT_THAT(of.released, ElementsAre(1, 0, 2));
  EXPECT_EQ(of.live(), 0);
}

TEST(LiveTable, NothingGoesWhileItIsRead) {
  Table of({10, 10, 10}, 1);
  of.begin({0, 1});
  of.begin({2});
  EXPECT_THAT(of.released, IsEmpty());
  EXPECT_EQ(of.live(), 30);
  of.table.end_reading({0, 1});
  EXPECT_THAT(of.released, ElementsAre(0, 1));
  of.table.end_reading({2});
  EXPECT_EQ(of.live(), 0);
}

TEST(LiveTable, WhatIsExpectedGoesLast) {
  Table of({10, 10, 10, 10}, 30);
  of.read({0}, {1});
  of.read({2}, {1});
  EXPECT_THAT(of.read({3}, {1}), ElementsAre(3));
  EXPECT_THAT(of.released, ElementsAre(0)); // the oldest of the others
  of.table.leave({1});
  of.expected.clear();
  of.read({0});
  EXPECT_THAT(of.released, ElementsAre(0, 1));
}

/// What is on its way to one process is not fetched by another, which waits for it.
TEST(LiveTable, OneFetchesForAll) {
  Table of({10, 10}, 100);
  LiveTable other(of.memory.data(), {10, 10}, 100, [](int) {}); // of another process
  of.table.begin_reading({0}, {}, {});
  other.begin_reading({0}, {}, {});
  EXPECT_THAT(of.table.claim({0}, {}).fetch, ElementsAre(0));
  const LiveTable::Claim claim = other.claim({0}, {});
  EXPECT_THAT(claim.fetch, IsEmpty());
  EXPECT_FALSE(claim.ready);
  std::thread fetches([&] { of.table.arrived(0); });
  while (!other.claim({0}, {}).ready) {
    other.wait(claim.seen, milliseconds(1000));
  }
  fetches.join();
  EXPECT_EQ(other.counts().fetches, 1);
}

/// A needed parameter takes the room of one that is on its way in vain, once it has come: the cap
/// is kept.
TEST(LiveTable, RoomThatIsComingIsWaitedFor) {
  Table of({10, 10}, 10);
  of.table.begin_reading({0}, {}, {1});
  of.table.claim({0}, {1});
  of.table.arrived(0);
  of.table.end_reading({0});
  of.table.begin_reading({0}, {1}, {1});
  of.table.end_reading({0});
  of.expected = {1};
  of.table.forget();
  EXPECT_THAT(of.table.claim({}, {1}).fetch, ElementsAre(1)); // on its way
  of.table.begin_reading({0}, {1}, {});
  const LiveTable::Claim early = of.table.claim({0}, {});
  EXPECT_THAT(early.fetch, IsEmpty());
  EXPECT_FALSE(early.ready);
  of.table.arrived(1);
  EXPECT_THAT(of.table.claim({0}, {}).fetch, ElementsAre(0));
  EXPECT_EQ(of.table.counts().highest_elements, 10);
}

} // namespace
} // namespace tessera::sharding
