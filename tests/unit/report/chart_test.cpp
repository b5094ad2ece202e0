#include "tessera/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/report/bars.h"
#include "tessera/report/format.h"

namespace tessera::report {
namespace {

ChartOptions options() {
  ChartOptions result;
  result.title = "loss <of> it";
  result.x_label = "step";
  result.y_text = [](double value) { return format_number(value); };
  return result;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Ticks, AreRoundAndCoverTheRange) {
  EXPECT_THAT(ticks(0, 10, 5), testing::ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(2.1, 3.9, 4), testing::ElementsAre(2, 2.5, 3, 3.5, 4));
  EXPECT_THAT(ticks(-3, 3, 3), testing::ElementsAre(-4, -2, 0, 2, 4));
  EXPECT_THAT(
      ticks(0, 0.0003, 3),
      testing::Pointwise(testing::DoubleEq(), std::vector<double>{0, 0.0001, 0.0002, 0.0003}));
}

TEST(Ticks, OfARangeOfAFewRoundingErrorsEnd) {
  // Multiples of the step are here beyond 2^53, where adding 1 to a double changes nothing.
  const double next = std::nextafter(3.0, 4.0);
  const auto marks = ticks(3, next, 5);
  EXPECT_LE(marks.size(), 10U);
  EXPECT_DOUBLE_EQ(marks.front(), 3);
  const double greatest = std::numeric_limits<double>::max();
  EXPECT_LE(ticks(-greatest, greatest, 5).size(), 10U);
}

TEST(Smoothed, KeepsALineAndLeavesOutWhatIsNotFinite) {
  std::vector<Point> constant;
  for (int i = 0; i < 50; ++i) {
    constant.emplace_back(i, i == 7 ? std::nan("") : 3.0);
  }
  const auto result = smoothed(constant, 4);
  ASSERT_EQ(result.size(), 49U);
  for (const Point& point : result) {
    EXPECT_NEAR(point.second, 3, 1e-12);
  }
}

TEST(Smoothed, WeighsByDistanceOnBothSides) {
  // Weights 1/4 1/2 1 1/2 1/4 around the middle.
  const auto result = smoothed({{0, 0}, {1, 0}, {2, 10}, {3, 0}, {4, 0}}, 1);
  EXPECT_NEAR(result[2].second, 10 / 2.5, 1e-12);
  EXPECT_NEAR(result[1].second, 5 / (0.5 + 1 + 0.5 + 0.25 + 0.125), 1e-12);
  EXPECT_NEAR(result[3].second, result[1].second, 1e-12);
}

TEST(LineChart, BreaksTheLineWhereAValueIsMissing) {
  const std::string svg =
      line_chart(options(), {{"a", "main", false, {{0, 1}, {1, 2}, {2, std::nan("")}, {3, 1}}}});
  EXPECT_EQ(count(svg, "<path class=\"main\""), 1U);
  const auto begin = svg.find(" d=\"", svg.find("<path class=\"main\""));
  const std::string path = svg.substr(begin, svg.find("/>", begin) - begin);
  EXPECT_EQ(count(path, "M"), 2U);
  EXPECT_EQ(count(path, "L"), 1U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_THAT(svg, testing::HasSubstr("loss &lt;of&gt; it"));
}

TEST(LineChart, ThinsLongLinesButKeepsTheirPeaks) {
  Series series{"a", "main", false, {}};
  for (int i = 0; i < 100'000; ++i) {
    series.points.emplace_back(i, i == 54'321 ? 100.0 : 1.0 + i % 2);
  }
  ChartOptions small = options();
  small.from_zero = true;
  const std::string svg = line_chart(small, {series});
  EXPECT_LT(svg.size(), 80'000U);
  // 100 is the top of the axis: y = 0, the upper edge.
  EXPECT_TRUE(std::regex_search(svg, std::regex("L[0-9.]+ 0[ML]")));
}

TEST(LineChart, DrawsOnePointAndNone) {
  EXPECT_THAT(
      line_chart(options(), {{"a", "main", true, {{5, 2}}}}), testing::HasSubstr("<circle"));
  const std::string empty = line_chart(options(), {{"a", "main", true, {}}});
  EXPECT_EQ(count(empty, "<circle"), 0U);
  EXPECT_EQ(count(empty, "class=\"at\""), 0U);
  EXPECT_EQ(empty.find("nan"), std::string::npos);
}

/// Smoothing a constant loss leaves rounding errors, which are no range to show.
TEST(LineChart, RoundingErrorsOfAConstantAreDrawnAsAConstant) {
  Series series{"a", "main", false, {}};
  for (int i = 0; i < 400; ++i) {
    series.points.emplace_back(i, 0.1);
  }
  series.points = smoothed(series.points, 9);
  series.points[7].second = std::nextafter(0.1, 1.0);
  const std::string noisy = line_chart(options(), {series});
  for (Point& point : series.points) {
    point.second = 0.1;
  }
  EXPECT_EQ(noisy, line_chart(options(), {series}));
  for (const double value : {0.0, 1e-310, -1e300}) {
    const double next = std::nextafter(value, std::numeric_limits<double>::infinity());
    const std::string svg = line_chart(options(), {{"a", "main", false, {{0, value}, {1, next}}}});
    EXPECT_EQ(svg.find("nan"), std::string::npos) << value;
  }
}

/// The text that each place shows while it is pointed at.
std::vector<std::string> readouts_of(const std::string& html) {
  std::vector<std::string> found;
  const std::regex pattern("y=\"-10\">([^<]*)</text></g>");
  for (std::sregex_iterator it(html.begin(), html.end(), pattern), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

TEST(LineChart, ShowsTheValuesOfAPlaceUnderThePointer) {
  ChartOptions asked = options();
  asked.x_name = "step";
  const std::string html = line_chart(
      asked,
      {{"training", "main", false, {{1, 4.5}, {2, std::nan("")}, {3, 2.25}}, ""},
       {"validation", "second", true, {{3, 2.5}}, "validation"}});
  EXPECT_THAT(
      readouts_of(html),
      testing::ElementsAre("step 1: 4.5", "step 2: not finite", "step 3: 2.25, validation 2.5"));
}

TEST(LineChart, ReadoutsOfALongRunAreFewAndKeepDotsAndTheLastValue) {
  Series line{"a", "main", false, {}, ""};
  for (int i = 1; i <= 10'000; ++i) {
    line.points.emplace_back(i, i);
  }
  ChartOptions asked = options();
  asked.readouts = 20;
  const auto shown = readouts_of(line_chart(asked, {line, {"v", "second", true, {{777, 5}}, "v"}}));
  EXPECT_EQ(shown.size(), 20U);
  EXPECT_THAT(shown, testing::Contains(testing::HasSubstr("777: 777, v 5")));
  EXPECT_THAT(shown.back(), testing::HasSubstr("10000: 1e+04"));
}

/// A tick between two steps would name a step that there is not.
TEST(LineChart, TicksOfStepsAreWholeNumbers) {
  const std::string html = line_chart(options(), {{"a", "main", false, {{1, 0}, {3, 1}}}});
  EXPECT_THAT(html, testing::HasSubstr(">2</text>"));
  EXPECT_EQ(html.find(">1.5</text>"), std::string::npos);
  EXPECT_EQ(html.find(">2.5</text>"), std::string::npos);
}

TEST(BarChart, LengthsAreInProportion) {
  const std::string svg = bar_chart({{"a&b", 100, 0, "x"}, {"c", 50, 25, "y"}});
  std::vector<double> widths;
  const std::regex pattern("width:([0-9.]+)%");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    widths.push_back(std::stod((*it)[1]));
  }
  EXPECT_THAT(widths, testing::ElementsAre(100, 0, 50, 25));
  EXPECT_THAT(svg, testing::HasSubstr("a&amp;b"));
  EXPECT_EQ(bar_chart({{"a", 0, 0, ""}}).find("nan"), std::string::npos);
}

} // namespace
} // namespace tessera::report
