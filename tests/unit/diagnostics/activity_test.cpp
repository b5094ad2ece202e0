// The pages of a node's ranks, here two boards of one process.
#include "tessera/diagnostics/activity.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/diagnostics/activity_board.h"
#include "tessera/diagnostics/crash_report.h"
#include "tessera/diagnostics/wait.h"

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

// Rank 1 is this thread; rank 0's page is written by hand.
TEST(Activity, TwoScriptsThatWaitForEachOtherInTwoGroupsAreTold) {
  auto board = std::make_unique<ActivityBoard>(1);
  ActivityBoard other(0);
  board->add(0, "node-x", other.address());
  ActivityBoard::publish(std::move(board));
  activity::script(3);
  const activity::Operation mine("all_reduce", "dp");
  ShownOperation& theirs = other.page().of_script;
  copy_text(theirs.kind, "broadcast");
  copy_text(theirs.group, "world");
  theirs.number = 8;
  theirs.awaited = 1;
  EXPECT_EQ(activity::opposed_wait(0), std::nullopt); // it is in nothing
  theirs.valid = 1;
  auto opposed = activity::opposed_wait(0);
  ASSERT_TRUE(opposed);
  EXPECT_EQ(opposed->text, "broadcast of group 'world'");
  EXPECT_EQ(opposed->number, 8U);
  EXPECT_EQ(activity::opposed_wait(2), std::nullopt); // of another node

  theirs.awaited = 2;
  EXPECT_EQ(activity::opposed_wait(0), std::nullopt);
  theirs.awaited = 1;
  copy_text(theirs.group, "dp");
  EXPECT_EQ(activity::opposed_wait(0), std::nullopt); // where groups compare their calls
  copy_text(theirs.group, "world");
  other.page().state = ActivityPage::State::kRuns;
  EXPECT_EQ(activity::opposed_wait(0), std::nullopt);
  other.page().state = ActivityPage::State::kScript;
  std::thread([] { EXPECT_EQ(activity::opposed_wait(0), std::nullopt); }).join();

  // For two scripts' waits in lockstep it takes a while and a second look.
  Wait patient;
  std::optional<Wait> lockstep(std::in_place, /*lockstep=*/true);
  const auto what = [] { return std::string("all_reduce #2"); };
  std::string why;
  const auto began = std::chrono::steady_clock::now();
  while (why.empty() && std::chrono::steady_clock::now() - began < std::chrono::seconds(60)) {
    EXPECT_EQ(patient.in_vain(0, what), "");
    why = lockstep->in_vain(0, what);
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - began, 2 * Wait::kSettled);
  EXPECT_THAT(why, testing::StartsWith("whose script waits for this rank in broadcast of group "));
  EXPECT_EQ(ActivityBoard::own_page()->of_script.awaited.load(), 0);
  lockstep.reset();
  EXPECT_EQ(ActivityBoard::own_page()->of_script.awaited.load(), -1);
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
