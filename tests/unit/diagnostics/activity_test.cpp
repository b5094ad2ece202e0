// The pages of a node's ranks, here two boards of one process.
#include "tessera/diagnostics/activity.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tessera/diagnostics/activity_board.h"
#include "tessera/diagnostics/crash_report.h"

namespace tessera::diagnostics {
namespace {

using std::chrono::milliseconds;

std::string text_of(const ActivityPage& page) {
  Line line;
  describe(page, line);
  return std::string(line.text());
}

TEST(Activity, WithoutABoardEveryFunctionDoesNothing) {
  if (ActivityBoard::published() != nullptr) {
    GTEST_SKIP() << "another test of this process has published one";
  }
  activity::runs(1, "m", 0, false);
  const activity::Operation operation("all_reduce", "dp");
  activity::leave();
  EXPECT_EQ(activity::of_rank(0), "");
  EXPECT_EQ(activity::of_node(), "");
  EXPECT_TRUE(claim_failure_report(milliseconds(1)));
}

TEST(Activity, APageSaysWhatItsRankDoes) {
  auto board = std::make_unique<ActivityBoard>(1);
  const ActivityPage& own = board->page();
  ActivityBoard other(0);
  board->add(0, "node-x", other.address());
  ipc::SegmentAddress wrong = other.address();
  wrong.nonce ^= 2;
  board->add(2, "node-x", wrong); // left out
  ActivityBoard::publish(std::move(board));

  EXPECT_EQ(text_of(own), "the script, before the first step's end");
  activity::script(3, "saves checkpoint 'step_3'");
  EXPECT_EQ(text_of(own), "the script, after 3 steps, saves checkpoint 'step_3'");
  activity::runs(4, "h.3", 1, false);
  activity::turns_backward();
  EXPECT_EQ(text_of(own), "step 4, module 'h.3', microbatch 1, backward");
  activity::waits(4, "", 2, false, "h.7", 5);
  EXPECT_EQ(
      text_of(own),
      "step 4, the step function, microbatch 2, forward, waiting for module 'h.7' on rank 5");
  activity::waits_for_requests(4);
  {
    const activity::Operation operation("all_reduce", "dp");
    EXPECT_EQ(text_of(own), "step 4, waiting for requests; in all_reduce of group 'dp'");
  }
  EXPECT_EQ(text_of(own), "step 4, waiting for requests");

  other.page().step = 7;
  other.page().state = ActivityPage::State::kServes;
  EXPECT_EQ(activity::of_rank(0), "step 7, waiting for requests");
  EXPECT_EQ(activity::of_rank(2), "");
  EXPECT_EQ(
      activity::of_node(), "; the other ranks of this node: rank 0: step 7, waiting for requests");

  // Rank 0's page holds who reports a failure of the node.
  EXPECT_TRUE(claim_failure_report(milliseconds(0)));
  EXPECT_EQ(other.page().failure.load(), 1U);
  failure_reported();
  EXPECT_FALSE(claim_failure_report(milliseconds(0)));
}

TEST(Activity, LinesHoldEveryNumberAndNoMoreThanFits) {
  Line line;
  line.add(std::numeric_limits<std::int64_t>::min()).add(" ").add(std::int64_t{0});
  EXPECT_EQ(line.text(), "-9223372036854775808 0");
  for (int i = 0; i < 1000; ++i) {
    line.add("0123456789");
  }
  EXPECT_EQ(line.text().size(), 768U);
  std::array<char, 4> text{};
  copy_text(text, "abcdef");
  EXPECT_STREQ(text.data(), "abc");
}

} // namespace
} // namespace tessera::diagnostics
