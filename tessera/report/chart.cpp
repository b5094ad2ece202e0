#include "tessera/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tessera/base/error.h"
#include "tessera/report/format.h"
#include "tessera/report/markup.h"

namespace tessera::report {

namespace {

// Lines are drawn in a box of this width, which the browser stretches to the plot. Everything else
// has positions in percent of the plot's width, so that letters and dots keep their shape.
constexpr double kBoxWidth = 1000;

/// Converts values to places in the plot: x in percent of its width, y in pixels from its top.
struct Frame {
  double height = 0;
  double x_min = 0;
  double x_max = 1;
  double y_min = 0;
  double y_max = 1;

  double x(double value) const {
    return (value - x_min) / (x_max - x_min) * 100;
  }
  double y(double value) const {
    return height - (value - y_min) / (y_max - y_min) * height;
  }
};

std::string px(double value) {
  return attribute(std::round(value * 10) / 10);
}

std::string percent(double value) {
  return attribute(std::round(value * 100) / 100) + "%";
}

/// Returns whether a range is nothing but rounding errors, which would be drawn as a mountain
/// range.
bool is_constant(double least, double greatest) {
  constexpr double kRounding = 1e-12; // of the values; smoothing adds up thousands of them
  constexpr double kTiny = 1e-300; // a tick's step must stay a normal number
  const double size = std::max(std::abs(least), std::abs(greatest));
  return greatest - least <= std::max(kRounding * size, kTiny);
}

/// Returns a frame that holds all finite points; that of an empty chart is 0 to 1.
Frame frame_of(const ChartOptions& options, const std::vector<Series>& series) {
  Frame frame;
  frame.height = options.height;
  bool any = false;
  for (const Series& one : series) {
    for (const Point& point : one.points) {
      if (!std::isfinite(point.second)) {
        continue;
      }
      if (!any) {
        frame.x_min = frame.x_max = point.first;
        frame.y_min = frame.y_max = point.second;
        any = true;
      }
      frame.x_min = std::min(frame.x_min, point.first);
      frame.x_max = std::max(frame.x_max, point.first);
      frame.y_min = std::min(frame.y_min, point.second);
      frame.y_max = std::max(frame.y_max, point.second);
    }
  }
  if (options.from_zero) {
    frame.y_min = std::min(0.0, frame.y_min);
    frame.y_max = std::max(0.0, frame.y_max);
  }
  if (frame.x_max <= frame.x_min) {
    frame.x_max = frame.x_min + 1;
  }
  if (is_constant(frame.y_min, frame.y_max)) {
    const double room = std::max(std::abs(frame.y_max) * 0.1, 1e-9);
    frame.y_min -= options.from_zero ? 0 : room;
    frame.y_max += room;
  }
  const auto marks = ticks(frame.y_min, frame.y_max, 5);
  frame.y_min = std::min(frame.y_min, marks.front());
  frame.y_max = std::max(frame.y_max, marks.back());
  return frame;
}

std::string x_text(const ChartOptions& options, double value) {
  return options.x_text ? escape(options.x_text(value)) : format_number(value, 9);
}

std::string axes(const ChartOptions& options, const Frame& frame) {
  std::string out;
  for (const double value : ticks(frame.y_min, frame.y_max, 5)) {
    if (value < frame.y_min || value > frame.y_max) {
      continue;
    }
    const std::string y = px(frame.y(value));
    out += fill(
        "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{}\" y2=\"{}\"/>"
        "<text class=\"tick\" text-anchor=\"end\" x=\"-8\" y=\"{}\" dy=\"0.35em\">{}</text>\n",
        {y, y, y, escape(options.y_text(value))});
  }
  int number = 0;
  for (const double value : ticks(frame.x_min, frame.x_max, 8)) {
    if (value < frame.x_min || value > frame.x_max ||
        (!options.x_text && value != std::floor(value))) {
      continue; // a label between two steps would mean nothing
    }
    // A narrow screen shows every second label.
    out += fill(
        "<text class=\"tick{}\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">{}</text>\n",
        {number++ % 2 == 1 ? " spare" : "",
         percent(frame.x(value)),
         px(frame.height + 18),
         x_text(options, value)});
  }
  out += fill(
      "<line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"{}\" y2=\"{}\"/>"
      "<text class=\"tick\" text-anchor=\"middle\" x=\"50%\" y=\"{}\">{}</text>\n",
      {px(frame.height), px(frame.height), px(frame.height + 36), escape(options.x_label)});
  return out;
}

/// Keeps at most two points of each column: its least and its greatest.
std::vector<Point> thinned(const std::vector<Point>& points, double columns) {
  if (static_cast<double>(points.size()) <= 2 * columns) {
    return points;
  }
  const double x_min = points.front().first;
  const double width = (points.back().first - x_min) / columns;
  std::vector<Point> result;
  for (std::size_t i = 0; i < points.size();) {
    const double column = std::floor((points[i].first - x_min) / width);
    std::size_t least = i;
    std::size_t greatest = i;
    std::size_t j = i;
    bool broken = false;
    for (; j < points.size() && std::floor((points[j].first - x_min) / width) <= column; ++j) {
      least = points[j].second < points[least].second ? j : least;
      greatest = points[j].second > points[greatest].second ? j : greatest;
      broken = broken || !std::isfinite(points[j].second);
    }
    if (broken) {
      result.emplace_back(points[i].first, std::numeric_limits<double>::quiet_NaN());
    } else {
      result.push_back(points[std::min(least, greatest)]);
      if (least != greatest) {
        result.push_back(points[std::max(least, greatest)]);
      }
    }
    i = j;
  }
  return result;
}

std::string path_of(const Series& series, const Frame& frame) {
  std::string path;
  bool pen_down = false;
  for (const Point& point : thinned(series.points, kBoxWidth * 0.7)) {
    if (!std::isfinite(point.second)) {
      pen_down = false;
      continue;
    }
    path +=
        str(pen_down ? "L" : "M",
            px(frame.x(point.first) / 100 * kBoxWidth),
            " ",
            px(frame.y(point.second)));
    pen_down = true;
  }
  return fill("<path class=\"{}\" d=\"{}\"/>\n", {escape(series.style), path});
}

std::string dot(const Series& series, const Frame& frame, const Point& point) {
  return fill(
      "<circle class=\"{}\" r=\"3.5\" cx=\"{}\" cy=\"{}\"/>",
      {escape(series.style), percent(frame.x(point.first)), px(frame.y(point.second))});
}

/// Returns the places at which values can be read: one x of each column that has points, that of a
/// dot rather than that of a line.
std::vector<double>
places(const ChartOptions& options, const Frame& frame, const std::vector<Series>& series) {
  std::map<std::int64_t, std::pair<bool, double>> chosen; // column -> (is a dot's, x)
  const auto columns = static_cast<double>(std::max<std::size_t>(1, options.readouts));
  for (const Series& one : series) {
    for (const Point& point : one.points) {
      if (!(frame.x(point.first) >= 0 && frame.x(point.first) <= 100)) {
        continue;
      }
      const auto column =
          static_cast<std::int64_t>(std::min(columns - 1, frame.x(point.first) / 100 * columns));
      const auto found = chosen.find(column);
      if (found == chosen.end() || (one.dots && !found->second.first)) {
        chosen[column] = {one.dots, point.first};
      }
    }
  }
  // The last place shows the last value, which most readers look for.
  if (!chosen.empty()) {
    double last = chosen.rbegin()->second.second;
    for (const Series& one : series) {
      last = one.points.empty() ? last : std::max(last, one.points.back().first);
    }
    if (frame.x(last) <= 100) {
      chosen.rbegin()->second.second = last;
    }
  }
  std::vector<double> result;
  for (const auto& entry : chosen) {
    result.push_back(entry.second.second);
  }
  return result;
}

/// Returns the point whose value is shown at a place, nullptr for none.
const Point* shown_at(const ChartOptions& options, const Series& series, double place) {
  const auto& points = series.points;
  const auto point = std::lower_bound(
      points.begin(), points.end(), place, [](const Point& a, double x) { return a.first < x; });
  if (point == points.end()) {
    return nullptr; // the line has ended
  }
  if (point->first == place) {
    return &*point;
  }
  return options.last_before && point != points.begin() ? &*(point - 1) : nullptr;
}

/// Returns the values at a place in lines of text, the last of them just above the plot. A line
/// holds as many values as a narrow screen has room for.
std::string readout(const std::string& place, const std::vector<std::string>& values) {
  constexpr std::size_t kValuesOfALine = 4;
  std::vector<std::string> lines = {place};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0 && i % kValuesOfALine == 0) {
      lines.emplace_back();
    }
    const char* separator = i == 0 ? ": " : i % kValuesOfALine == 0 ? "" : ", ";
    lines.back() += separator + values[i];
  }
  const int last = lines.size() > 1 ? -7 : -10;
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    out += fill(
        "<text text-anchor=\"end\" x=\"100%\" y=\"{}\">{}</text>",
        {str(last - 13 * static_cast<int>(lines.size() - 1 - i)), lines[i]});
  }
  return out;
}

/// Returns a strip for each place that shows its line, dots and values while it is pointed at.
std::string
readouts(const ChartOptions& options, const Frame& frame, const std::vector<Series>& series) {
  const auto all = places(options, frame, series);
  std::string out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double here = frame.x(all[i]);
    const double from = i == 0 ? 0 : (frame.x(all[i - 1]) + here) / 2;
    const double to = i + 1 == all.size() ? 100 : (here + frame.x(all[i + 1])) / 2;
    std::string dots;
    std::vector<std::string> values;
    for (const Series& one : series) {
      const Point* point = shown_at(options, one, all[i]);
      if (point == nullptr) {
        continue;
      }
      const bool finite = std::isfinite(point->second);
      values.push_back(
          str(escape(one.readout),
              one.readout.empty() ? "" : " ",
              finite ? escape(options.y_text(point->second)) : "not finite"));
      dots += finite ? dot(one, frame, *point) : "";
    }
    out += fill(
        "<g class=\"at\"><rect x=\"{}\" width=\"{}\" y=\"-26\" height=\"{}\"/>"
        "<line x1=\"{}\" x2=\"{}\" y1=\"0\" y2=\"{}\"/>{}{}</g>\n",
        {percent(from),
         percent(to - from),
         px(frame.height + 26),
         percent(here),
         percent(here),
         px(frame.height),
         dots,
         readout(str(escape(options.x_name), " ", x_text(options, all[i])), values)});
  }
  return out;
}

std::string legend(const std::vector<Series>& series) {
  std::string out;
  for (const Series& one : series) {
    out += fill(
        "<span><svg width=\"22\" height=\"10\"><path class=\"{}\" d=\"M1 "
        "5h20\"/>{}</svg>{}</span>\n",
        {escape(one.style),
         one.dots ? fill("<circle class=\"{}\" r=\"3.5\" cx=\"11\" cy=\"5\"/>", {escape(one.style)})
                  : "",
         escape(one.name)});
  }
  return "<p class=\"legend\">" + out + "</p>\n";
}

} // namespace

std::vector<double> ticks(double least, double greatest, int count) {
  TESSERA_CHECK(greatest > least && count > 0, least, " ", greatest);
  const double rough = greatest / count - least / count; // the difference itself may overflow
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
    }
  }
  std::vector<double> result;
  const double first = std::floor(least / step + 1e-9);
  const double last = std::ceil(greatest / step - 1e-9);
  // The multiples are counted as an integer: beyond 2^53 a double plus 1 is the same double.
  const auto steps = static_cast<int>(last - first);
  for (int i = 0; i <= steps; ++i) {
    result.push_back((first + i) * step);
  }
  return result;
}

std::vector<Point> smoothed(const std::vector<Point>& points, double half_life) {
  const double decay = std::pow(0.5, 1 / half_life);
  std::vector<Point> result;
  for (const Point& point : points) {
    if (std::isfinite(point.second)) {
      result.push_back(point);
    }
  }
  // First sum each point with all before it, then add all after it; values and weights alike.
  std::vector<Point> before;
  double sum = 0;
  double weight = 0;
  for (const Point& point : result) {
    sum = sum * decay + point.second;
    weight = weight * decay + 1;
    before.emplace_back(sum, weight);
  }
  sum = 0;
  weight = 0;
  for (std::size_t i = result.size(); i-- > 0;) {
    const double value = result[i].second;
    result[i].second = (before[i].first + sum) / (before[i].second + weight);
    sum = (sum + value) * decay;
    weight = (weight + 1) * decay;
  }
  return result;
}

std::string line_chart(const ChartOptions& options, const std::vector<Series>& series) {
  const Frame frame = frame_of(options, series);
  std::string lines;
  std::string dots;
  for (const Series& one : series) {
    lines += path_of(one, frame);
    for (const Point& point : one.points) {
      dots += one.dots && std::isfinite(point.second) ? dot(one, frame, point) + "\n" : "";
    }
  }
  return fill(
      "<div class=\"chart\"><p class=\"name\">{}</p>\n{}<div class=\"plot\">"
      "<svg width=\"100%\" height=\"{}\" role=\"img\" aria-label=\"{}\">\n{}"
      "<svg width=\"100%\" height=\"{}\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\">\n"
      "{}</svg>\n{}{}</svg></div></div>\n",
      {escape(options.title),
       series.size() > 1 ? legend(series) : "",
       str(options.height),
       escape(options.title),
       axes(options, frame),
       str(options.height),
       px(kBoxWidth),
       str(options.height),
       lines,
       dots,
       readouts(options, frame, series)});
}

} // namespace tessera::report
