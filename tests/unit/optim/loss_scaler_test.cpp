// The loss scale as a state machine: every transition, both kinds of hysteresis.
#include "tessera/optim/loss_scaler.h"

#include <gmock/gmock.h>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using ::testing::HasSubstr;

/// Steps as text, 'o' for an overflow and '.' for none, and the scale after each.
struct Course {
  const char* what;
  DynamicLossArgs args;
  const char* steps;
  std::vector<double> scales;
};

std::vector<Course> courses() {
  return {
      {"falls at once", {.init_scale = 8, .scale_window = 9}, "oo.o", {4, 2, 2, 1}},
      {"stops at the smallest", {.init_scale = 8, .min_scale = 3}, "ooo", {4, 3, 3}},
      {"another factor",
       {.init_scale = 90, .scale_factor = 3, .scale_window = 1},
       "oo.",
       {30, 10, 30}},
      {"grows after a window",
       {.init_scale = 4, .scale_window = 3},
       ".......",
       {4, 4, 8, 8, 8, 16, 16}},
      {"an overflow begins the window anew",
       {.init_scale = 4, .scale_window = 3},
       "..o...",
       {4, 4, 2, 2, 2, 4}},
      {"two overflows until it falls, and then at each",
       {.init_scale = 64, .scale_window = 9, .delayed_shift = 2},
       "oooo",
       {64, 32, 16, 8}},
      {"clean steps between do not forget an overflow",
       {.init_scale = 64, .scale_window = 9, .delayed_shift = 2},
       "o...o",
       {64, 64, 64, 64, 32}},
      {"a growing scale forgets it",
       {.init_scale = 64, .scale_window = 2, .delayed_shift = 2},
       "o..oo",
       {64, 64, 128, 128, 64}},
      {"consecutive: every clean step forgets it",
       {.init_scale = 64, .scale_window = 9, .delayed_shift = 2, .consecutive_hysteresis = true},
       "o.o.oo",
       {64, 64, 64, 64, 64, 32}},
      {"three overflows, counted at the smallest scale as well",
       {.init_scale = 2, .scale_window = 9, .min_scale = 2, .delayed_shift = 3},
       "ooo.",
       {2, 2, 2, 2}},
  };
}

TEST(LossScaler, FollowsTheTable) {
  for (const Course& course : courses()) {
    LossScaler scaler(course.args);
    EXPECT_EQ(scaler.scale(), course.args.init_scale);
    ASSERT_EQ(std::string(course.steps).size(), course.scales.size()) << course.what;
    for (std::size_t i = 0; i < course.scales.size(); ++i) {
      scaler.update(course.steps[i] == 'o');
      EXPECT_EQ(scaler.scale(), course.scales[i]) << course.what << ", step " << i;
    }
  }
}

TEST(LossScaler, DefaultsAreThoseOfTheDocumentation) {
  const LossScaler scaler{DynamicLossArgs{}};
  EXPECT_EQ(scaler.scale(), 4294967296.0);
  const DynamicLossArgs args;
  EXPECT_EQ(args.scale_factor, 2);
  EXPECT_EQ(args.scale_window, 1000);
  EXPECT_EQ(args.min_scale, 1);
  EXPECT_EQ(args.delayed_shift, 1);
  EXPECT_FALSE(args.consecutive_hysteresis);
}

TEST(LossScaler, SaysWhatAnOverflowMeans) {
  using Outcome = LossScaler::Outcome;
  LossScaler scaler(DynamicLossArgs{.init_scale = 2});
  EXPECT_EQ(scaler.update(false), Outcome::kClean);
  EXPECT_EQ(scaler.update(true), Outcome::kOverflow);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(scaler.update(true), Outcome::kOverflowAtMinimum);
  EXPECT_EQ(scaler.update(false), Outcome::kClean);
}

TEST(LossScaler, AStaticScaleStays) {
  LossScaler scaler(128);
  EXPECT_FALSE(scaler.dynamic());
  for (int i = 0; i < 3000; ++i) {
    EXPECT_EQ(scaler.update(false), LossScaler::Outcome::kClean);
  }
  EXPECT_EQ(scaler.update(true), LossScaler::Outcome::kOverflowAtMinimum);
  EXPECT_EQ(scaler.scale(), 128);
  scaler.set_state(LossScaler(DynamicLossArgs{.init_scale = 4}).to_json(), "test");
  EXPECT_EQ(scaler.scale(), 128);
}

// Wherever a run is cut, it goes on as if it had not been.
TEST(LossScaler, GoesOnFromItsState) {
  for (const Course& course : courses()) {
    for (std::size_t cut = 0; cut < course.scales.size(); ++cut) {
      LossScaler before(course.args);
      for (std::size_t i = 0; i < cut; ++i) {
        before.update(course.steps[i] == 'o');
      }
      LossScaler after(course.args);
      after.set_state(before.to_json(), "test");
      for (std::size_t i = cut; i < course.scales.size(); ++i) {
        after.update(course.steps[i] == 'o');
        EXPECT_EQ(after.scale(), course.scales[i]) << course.what << ", cut " << cut;
      }
    }
  }
}

TEST(LossScaler, AStateKeepsTheBitsOfAnyScale) {
  LossScaler scaler(DynamicLossArgs{.init_scale = 1e9 / 3, .scale_factor = 1.7});
  scaler.update(true);
  LossScaler other(DynamicLossArgs{.scale_factor = 1.7});
  other.set_state(scaler.to_json(), "test");
  EXPECT_EQ(other.scale(), scaler.scale());
}

// Arguments are the run's own: a state of others is brought inside of their bounds.
TEST(LossScaler, TakesTheStateOfOtherArguments) {
  LossScaler scaler(DynamicLossArgs{.init_scale = 64, .min_scale = 16});
  scaler.set_state(R"({"scale": 2.0, "clean_steps": 1, "hysteresis": 5})", "test");
  EXPECT_EQ(scaler.scale(), 16);
  scaler.set_state(R"({"scale": 64.0, "clean_steps": 1, "hysteresis": 5})", "test");
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 32) << "delayed_shift is 1";
}

template <typename Make>
std::string error_of(const Make& make) {
  try {
    make();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LossScaler, NamesWhatIsWrong) {
  const auto of = [](DynamicLossArgs args) { return error_of([&] { LossScaler scaler(args); }); };
  EXPECT_THAT(of({.init_scale = 0}), HasSubstr("init_scale is 0"));
  EXPECT_THAT(of({.init_scale = 2, .min_scale = 4}), HasSubstr("init_scale is 2; write at least"));
  EXPECT_THAT(of({.scale_factor = 1}), HasSubstr("scale_factor is 1"));
  EXPECT_THAT(of({.scale_window = 0}), HasSubstr("scale_window is 0"));
  EXPECT_THAT(of({.min_scale = -1}), HasSubstr("min_scale is -1"));
  EXPECT_THAT(of({.delayed_shift = 0}), HasSubstr("delayed_shift is 0"));
  EXPECT_THAT(error_of([] { LossScaler scaler(-2.0); }), HasSubstr("static_loss_scale is -2"));
  LossScaler scaler{DynamicLossArgs{}};
  EXPECT_THAT(
      error_of(
          [&] { scaler.set_state(R"({"scale": -1.0, "clean_steps": 0, "hysteresis": 1})", "x"); }),
      HasSubstr("scale"));
  EXPECT_EQ(scaler.scale(), 4294967296.0);
}

} // namespace
} // namespace tessera::optim
