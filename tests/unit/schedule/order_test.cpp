#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string order_error(const std::string& text, int microbatches, int active) {
  return error_of([&] { validate_order(parse_order(text), microbatches, active); });
}

TEST(Order, TextRoundTrip) {
  const std::vector<Action> order = {
      {0, Phase::kForward}, {12, Phase::kForward}, {0, Phase::kBackward}, {12, Phase::kBackward}};
  EXPECT_EQ(to_text(order), "0F 12F 0B 12B");
  EXPECT_EQ(parse_order(to_text(order)), order);
  EXPECT_EQ(parse_order(" \t0F\n12F  0B\r\n12B "), order);
  EXPECT_TRUE(parse_order("").empty());
  EXPECT_EQ(to_text({}), "");
}

TEST(Order, NamesTheTokenThatIsNoAction) {
  for (const char* token : {"F", "0", "0f", "0X", "-1F", "F0", "0FF", "0 F", "99999999999F"}) {
    const std::string message = error_of([&] { parse_order(std::string("0F ") + token + " 0B"); });
    EXPECT_THAT(message, AllOf(HasSubstr("entry "), HasSubstr("0F 1F 0B 1B"))) << token;
  }
  EXPECT_THAT(
      error_of([] { parse_order("0F 1G"); }), AllOf(HasSubstr("entry 2"), HasSubstr("\"1G\"")));
}

TEST(Order, AnyBytesGiveAnOrderOrAConfigError) {
  std::mt19937 random(7);
  const std::string likely = "0123456789FB -\n";
  for (int trial = 0; trial < 5000; ++trial) {
    std::string text;
    for (auto size = random() % 40; size > 0; --size) {
      text +=
          random() % 4 == 0 ? static_cast<char>(random() % 256) : likely[random() % likely.size()];
    }
    try {
      const auto order = parse_order(text);
      EXPECT_EQ(parse_order(to_text(order)), order);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("custom_schedule: entry "));
    }
  }
}

TEST(Order, ValidOrders) {
  EXPECT_EQ(order_error("0F 0B", 1, 1), "no error");
  EXPECT_EQ(order_error("0F 1F 0B 1B", 2, 2), "no error");
  EXPECT_EQ(order_error("1F 0F 1B 0B", 2, 2), "no error");
  EXPECT_EQ(order_error("0F 1F 0B 2F 1B 2B", 3, 2), "no error");
}

TEST(Order, EveryPhaseOnce) {
  EXPECT_THAT(order_error("0F 0B 0F", 1, 2), HasSubstr("0F stands twice"));
  EXPECT_THAT(order_error("0F 0B 0B", 1, 2), HasSubstr("0B stands twice"));
  EXPECT_THAT(order_error("0F", 1, 2), HasSubstr("0B is missing"));
  EXPECT_THAT(order_error("0F 0B", 2, 2), HasSubstr("1F is missing"));
  EXPECT_THAT(order_error("", 1, 2), HasSubstr("0F is missing"));
}

TEST(Order, BackwardFollowsForward) {
  EXPECT_THAT(order_error("0B 0F", 1, 1), HasSubstr("0B stands before 0F"));
}

TEST(Order, NamesAMicrobatchThatDoesNotExist) {
  EXPECT_THAT(
      order_error("0F 2F", 2, 2),
      AllOf(HasSubstr("2F"), HasSubstr("microbatches is 2"), HasSubstr("1")));
}

TEST(Order, RefusesWhatWouldWaitForEver) {
  EXPECT_THAT(
      order_error("0F 1F 0B 1B", 2, 1),
      AllOf(
          HasSubstr("1F"),
          HasSubstr("active_microbatches is 1"),
          HasSubstr("\"active_microbatches\": 2")));
}

TEST(MakeSchedule, NamesWhatIsWrong) {
  EXPECT_THAT(
      error_of([] { make_schedule("gpipe", 1, 1); }),
      AllOf(HasSubstr("\"gpipe\""), HasSubstr("\"interleaved\"")));
  EXPECT_THAT(error_of([] { make_schedule("simple", 0, 1); }), HasSubstr("0 and 1"));
  EXPECT_THAT(error_of([] { make_schedule("simple", 1, 0); }), HasSubstr("1 and 0"));
  EXPECT_THAT(
      error_of([] { make_schedule("simple", 1, 1, parse_order("0F 0B")); }),
      HasSubstr("\"simple\""));
  EXPECT_THAT(error_of([] { make_schedule("custom", 1, 1); }), HasSubstr("0F is missing"));
}

} // namespace

} // namespace tessera::schedule
