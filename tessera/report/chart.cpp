#include "tessera/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/report/format.h"

namespace tessera::report {

namespace {

struct Frame {
  double left = 64;
  double right = 0;
  double top = 30;
  double bottom = 0;
  double x_min = 0;
  double x_max = 1;
  double y_min = 0;
  double y_max = 1;

  double x(double value) const {
    return left + (value - x_min) / (x_max - x_min) * (right - left);
  }
  double y(double value) const {
    return bottom - (value - y_min) / (y_max - y_min) * (bottom - top);
  }
};

std::string px(double value) {
  return format_number(std::round(value * 10) / 10, 6);
}

/// The limits of all finite points; an empty chart keeps 0 to 1.
Frame frame_of(const ChartOptions& options, const std::vector<Series>& series) {
  Frame frame;
  frame.right = options.width - 16;
  frame.bottom = options.height - 40;
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
  if (frame.y_max <= frame.y_min) {
    const double room = std::max(std::abs(frame.y_max) * 0.1, 1e-9);
    frame.y_min -= options.from_zero ? 0 : room;
    frame.y_max += room;
  }
  const auto marks = ticks(frame.y_min, frame.y_max, 5);
  frame.y_min = std::min(frame.y_min, marks.front());
  frame.y_max = std::max(frame.y_max, marks.back());
  return frame;
}

std::string axes(const ChartOptions& options, const Frame& frame) {
  std::string out;
  for (const double value : ticks(frame.y_min, frame.y_max, 5)) {
    if (value < frame.y_min || value > frame.y_max) {
      continue;
    }
    const std::string y = px(frame.y(value));
    out +=
        str("<line class=\"grid\" x1=\"",
            px(frame.left),
            "\" x2=\"",
            px(frame.right),
            "\" y1=\"",
            y,
            "\" y2=\"",
            y,
            "\"/><text class=\"tick\" text-anchor=\"end\" x=\"",
            px(frame.left - 8),
            "\" y=\"",
            y,
            "\" dy=\"0.35em\">",
            escape(options.y_text(value)),
            "</text>\n");
  }
  for (const double value : ticks(frame.x_min, frame.x_max, 8)) {
    if (value < frame.x_min || value > frame.x_max) {
      continue;
    }
    out +=
        str("<text class=\"tick\" text-anchor=\"middle\" x=\"",
            px(frame.x(value)),
            "\" y=\"",
            px(frame.bottom + 17),
            "\">",
            format_number(value, 9),
            "</text>\n");
  }
  out +=
      str("<line class=\"axis\" x1=\"",
          px(frame.left),
          "\" x2=\"",
          px(frame.right),
          "\" y1=\"",
          px(frame.bottom),
          "\" y2=\"",
          px(frame.bottom),
          "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"",
          px((frame.left + frame.right) / 2),
          "\" y=\"",
          px(frame.bottom + 34),
          "\">",
          escape(options.x_label),
          "</text>\n");
  return out;
}

/// At most two points for each half pixel column: its least and greatest.
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

std::string draw(const Series& series, const Frame& frame) {
  std::string path;
  std::string dots;
  bool pen_down = false;
  for (const Point& point : thinned(series.points, frame.right - frame.left)) {
    if (!std::isfinite(point.second)) {
      pen_down = false;
      continue;
    }
    const std::string x = px(frame.x(point.first));
    const std::string y = px(frame.y(point.second));
    path += str(pen_down ? "L" : "M", x, " ", y);
    pen_down = true;
    if (series.dots) {
      dots +=
          str("<circle class=\"",
              escape(series.style),
              "\" r=\"3\" cx=\"",
              x,
              "\" cy=\"",
              y,
              "\"><title>",
              escape(series.name),
              " ",
              format_number(point.first, 9),
              ": ",
              format_number(point.second),
              "</title></circle>\n");
    }
  }
  return str("<path class=\"", escape(series.style), "\" d=\"", path, "\"/>\n", dots);
}

std::string legend(const std::vector<Series>& series, double right) {
  std::string out;
  double x = right;
  for (auto one = series.rbegin(); one != series.rend(); ++one) {
    x -= 7.0 * static_cast<double>(one->name.size()) + 34;
    out +=
        str("<path class=\"",
            escape(one->style),
            "\" d=\"M",
            px(x),
            " 14h18\"/><text class=\"tick\" x=\"",
            px(x + 23),
            "\" y=\"18\">",
            escape(one->name),
            "</text>\n");
  }
  return out;
}

} // namespace

std::vector<double> ticks(double least, double greatest, int count) {
  TESSERA_CHECK(greatest > least && count > 0, least, " ", greatest);
  const double rough = (greatest - least) / count;
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
  for (double i = first; i <= last; ++i) {
    result.push_back(i * step);
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
  // Sums and weights of each point with all before it, then with all after.
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
  std::string out =
      str("<svg class=\"chart\" role=\"img\" viewBox=\"0 0 ",
          options.width,
          " ",
          options.height,
          "\"><title>",
          escape(options.title),
          "</title><text class=\"name\" x=\"8\" y=\"18\">",
          escape(options.title),
          "</text>\n");
  out += axes(options, frame);
  for (const Series& one : series) {
    out += draw(one, frame);
  }
  if (series.size() > 1) {
    out += legend(series, frame.right);
  }
  return out + "</svg>\n";
}

std::string bar_chart(const std::vector<Bar>& bars, int width) {
  constexpr double kRow = 26;
  std::size_t longest_label = 0;
  std::size_t longest_text = 0;
  double most = 0;
  for (const Bar& bar : bars) {
    longest_label = std::max(longest_label, bar.label.size());
    longest_text = std::max(longest_text, bar.text.size());
    most = std::max(most, bar.value);
  }
  const double left = 16 + 7.0 * static_cast<double>(longest_label);
  const double room = width - left - 16 - 7.0 * static_cast<double>(longest_text);
  const auto length = [&](double value) {
    return px(most > 0 ? std::max(0.0, value / most * room) : 0.0);
  };
  std::string out =
      str("<svg class=\"chart\" role=\"img\" viewBox=\"0 0 ",
          width,
          " ",
          px(kRow * static_cast<double>(bars.size()) + 4),
          "\">\n");
  double y = 2;
  for (const Bar& bar : bars) {
    out +=
        str("<text class=\"tick\" text-anchor=\"end\" x=\"",
            px(left - 8),
            "\" y=\"",
            px(y + 16),
            "\">",
            escape(bar.label),
            "</text><rect class=\"bar\" x=\"",
            px(left),
            "\" y=\"",
            px(y + 3),
            "\" height=\"18\" width=\"",
            length(bar.value),
            "\"/>");
    if (bar.inner > 0) {
      out +=
          str("<rect class=\"inner\" x=\"",
              px(left),
              "\" y=\"",
              px(y + 3),
              "\" height=\"18\" width=\"",
              length(bar.inner),
              "\"/>");
    }
    out +=
        str("<text class=\"tick\" x=\"",
            px(left + 8 + (most > 0 ? bar.value / most * room : 0)),
            "\" y=\"",
            px(y + 16),
            "\">",
            escape(bar.text),
            "</text>\n");
    y += kRow;
  }
  return out + "</svg>\n";
}

} // namespace tessera::report
