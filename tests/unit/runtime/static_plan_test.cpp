#include "tessera/runtime/replay/static_plan.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::runtime {
namespace {

/// Two calls made one after the other by the step function on rank 0, forward
/// only: A on rank 1 makes what B on rank 2 takes.
constexpr std::uint64_t kRoot = 1;
constexpr MessageId kToA{10, CallMessage::kArguments};
constexpr MessageId kFromA{10, CallMessage::kResults};
constexpr MessageId kToB{20, CallMessage::kArguments};
constexpr MessageId kFromB{20, CallMessage::kResults};

MessageFlow message(const MessageId& id, bool sent, int peer, SlotFlow slot = {}) {
  MessageFlow flow;
  flow.id = id;
  flow.sent = sent;
  flow.peer = peer;
  flow.slots = {std::move(slot)};
  return flow;
}

std::vector<RankFlow> two_calls(bool parent_reads) {
  SlotFlow received;
  received.read = parent_reads;
  SlotFlow handed_on;
  handed_on.origins = {{kFromA, 0}};
  RankFlow root;
  root.turns = {
      {kRoot, 0, Cause::kStart, {}},
      {kRoot, 1, Cause::kResponse, kFromA},
      {kRoot, 2, Cause::kResponse, kFromB}};
  root.messages = {
      message(kToA, true, 1),
      message(kFromA, false, 1, received),
      message(kToB, true, 2, handed_on),
      message(kFromB, false, 2)};
  RankFlow a;
  a.turns = {{101, 0, Cause::kStart, kToA}};
  a.messages = {message(kToA, false, 0), message(kFromA, true, 0)};
  RankFlow b;
  b.turns = {{201, 0, Cause::kStart, kToB}};
  b.messages = {message(kToB, false, 0), message(kFromB, true, 0)};
  return {root, a, b};
}

std::vector<int> peers(const SentMessage& sent) {
  std::vector<int> list;
  for (const Outgoing& outgoing : sent.outgoing) {
    list.push_back(outgoing.peer);
  }
  return list;
}

TEST(StaticPlan, PlainWaysAreThoseRecorded) {
  const auto plans = make_static_plan(two_calls(false), false);
  EXPECT_EQ(plans[0].turns.size(), 3U);
  EXPECT_EQ(peers(plans[1].sent.at(kFromA)), std::vector<int>{0});
  EXPECT_EQ(peers(plans[0].sent.at(kToB)), std::vector<int>{2});
  EXPECT_EQ(plans[2].turns[0].needs, std::vector<MessageId>{kToB});
  EXPECT_EQ(plans[0].reports_expected, 0);
}

TEST(StaticPlan, AnUnreadTensorGoesStraightToItsReader) {
  const auto plans = make_static_plan(two_calls(false), true);
  // The parent does not wait for A.
  ASSERT_EQ(plans[0].turns.size(), 2U);
  EXPECT_EQ(plans[0].turns[1].turn.number, 2);
  EXPECT_EQ(peers(plans[1].sent.at(kFromA)), std::vector<int>{2});
  EXPECT_TRUE(plans[0].sent.at(kToB).outgoing.empty());
  EXPECT_FALSE(plans[0].sent.at(kToB).made[0]);
  EXPECT_EQ(plans[2].turns[0].needs, std::vector<MessageId>{kFromA});
  EXPECT_TRUE(plans[0].received.at(kFromA).places[0].empty());
  // A's tensor reaches B, B's the root: nobody has to report.
  EXPECT_EQ(plans[0].reports_expected, 0);
}

TEST(StaticPlan, AReadTensorGoesThePlainWay) {
  const auto plans = make_static_plan(two_calls(true), true);
  EXPECT_EQ(plans[0].turns.size(), 3U);
  EXPECT_EQ(peers(plans[1].sent.at(kFromA)), std::vector<int>{0});
  EXPECT_EQ(plans[2].turns[0].needs, std::vector<MessageId>{kToB});
}

// The part behind A's answer does not need it, yet it changes a buffer.
TEST(StaticPlan, ATurnThatKeepsItsPlaceIsNotJoined) {
  auto flows = two_calls(false);
  flows[0].turns[1].keeps_place = true;
  const auto plans = make_static_plan(flows, true);
  ASSERT_EQ(plans[0].turns.size(), 3U);
  EXPECT_TRUE(plans[0].turns[1].needs.empty());
  EXPECT_TRUE(plans[0].received.at(kFromA).waits);
  EXPECT_EQ(peers(plans[1].sent.at(kFromA)), std::vector<int>{2});
}

TEST(StaticPlan, ExactSumsOfThreeAreMadeWhereTheyWereRecorded) {
  for (const int summands : {2, 3}) {
    auto flows = two_calls(false);
    flows[0].messages[2].slots[0].origins.assign(summands, {kFromA, 0});
    const auto exact = make_static_plan(flows, true, true);
    EXPECT_EQ(peers(exact[1].sent.at(kFromA)), std::vector<int>{summands == 2 ? 2 : 0});
    EXPECT_EQ(exact[0].sent.at(kToB).made[0], summands == 3);
    const auto plain = make_static_plan(flows, true);
    EXPECT_EQ(peers(plain[1].sent.at(kFromA)), std::vector<int>{2});
  }
}

TEST(StaticPlan, ARankWhoseLastTensorNobodyTakesReports) {
  auto flows = two_calls(false);
  // B's result is thrown away, so B's rank ends without a word.
  flows[0].messages[3].slots[0].read = false;
  const auto plans = make_static_plan(flows, true);
  EXPECT_TRUE(plans[2].reports);
  EXPECT_FALSE(plans[1].reports);
  EXPECT_EQ(plans[0].reports_expected, 1);
  EXPECT_EQ(plans[0].turns.size(), 1U);
}

// A gradient that is read pulls its tensor to the plain way: autograd wants the
// two alike.
TEST(StaticPlan, ATensorAndItsGradientGoTheSameWay) {
  constexpr MessageId kGradientToB{20, CallMessage::kOutputGradients};
  constexpr MessageId kGradientFromB{20, CallMessage::kInputGradients};
  constexpr MessageId kGradientToA{10, CallMessage::kOutputGradients};
  for (const bool read : {false, true}) {
    auto flows = two_calls(false);
    for (auto& flow : flows) {
      for (auto& one : flow.messages) {
        one.slots[0].requires_grad = one.id != kToA;
      }
    }
    SlotFlow gradient;
    gradient.read = read;
    SlotFlow handed_on;
    if (!read) {
      handed_on.origins = {{kGradientFromB, 0}};
    }
    flows[0].messages.push_back(message(kGradientToB, true, 2));
    flows[0].messages.push_back(message(kGradientFromB, false, 2, gradient));
    flows[0].messages.push_back(message(kGradientToA, true, 1, handed_on));
    flows[1].messages.push_back(message(kGradientToA, false, 0));
    flows[2].messages.push_back(message(kGradientToB, false, 0));
    flows[2].messages.push_back(message(kGradientFromB, true, 0));
    flows[0].turns.push_back({kRoot, 3, Cause::kResponse, kGradientFromB});
    flows[1].turns.push_back({102, 0, Cause::kStart, kGradientToA});
    flows[2].turns.push_back({202, 0, Cause::kStart, kGradientToB});
    const auto plans = make_static_plan(flows, true);
    EXPECT_EQ(peers(plans[1].sent.at(kFromA)), std::vector<int>{read ? 0 : 2});
    EXPECT_EQ(peers(plans[2].sent.at(kGradientFromB)), std::vector<int>{read ? 0 : 1});
    EXPECT_EQ(plans[0].turns.size(), read ? 4U : 2U);
    EXPECT_TRUE(plans[1].reports);
  }
}

TEST(StaticPlan, FlowsThatDoNotFitTogetherAreAnError) {
  auto flows = two_calls(false);
  flows[2].messages.pop_back();
  EXPECT_THROW(make_static_plan(flows, false), InternalError);
}

TEST(Flow, NumbersAndBack) {
  const auto flows = two_calls(false);
  const auto numbers = to_numbers(flows[0]);
  const RankFlow back = flow_from_numbers(numbers);
  EXPECT_EQ(back.turns, flows[0].turns);
  ASSERT_EQ(back.messages.size(), flows[0].messages.size());
  for (std::size_t i = 0; i < back.messages.size(); ++i) {
    EXPECT_EQ(back.messages[i].id, flows[0].messages[i].id);
    EXPECT_EQ(back.messages[i].slots, flows[0].messages[i].slots);
  }
  for (std::size_t size = 0; size < numbers.size(); ++size) {
    EXPECT_THROW(flow_from_numbers(std::span(numbers).subspan(0, size)), InternalError);
  }
}

} // namespace
} // namespace tessera::runtime
