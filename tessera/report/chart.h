#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::report {

using Point = std::pair<double, double>;

/// One line (or one set of dots) of a chart.
struct Series {
  std::string name; // for the legend
  std::string style; // CSS class: "raw", "main", "second"
  bool dots = false; // points joined by a line, with a dot each
  std::vector<Point> points; // ascending x; a y that is NaN breaks the line
};

struct ChartOptions {
  std::string title;
  std::string x_label;
  std::function<std::string(double)> y_text; // of a tick
  bool from_zero = false; // the y axis begins at 0
  int width = 720;
  int height = 280;
};

/// An <svg> element. Lines of more points than the chart has room for are
/// thinned to the least and greatest value of each column of pixels.
std::string line_chart(const ChartOptions& options, const std::vector<Series>& series);

struct Bar {
  std::string label;
  double value = 0; // the long bar
  double inner = 0; // a darker part of it, 0 for none
  std::string text; // to the right of the bar
};

/// Horizontal bars, longest = full width. An <svg> element.
std::string bar_chart(const std::vector<Bar>& bars, int width = 720);

/// Round values that cover from `least` to `greatest`, about `count` of them.
std::vector<double> ticks(double least, double greatest, int count);

/// The mean of all values around each, weighted by 0.5^(distance / half_life)
/// with the distance counted in points: unlike a mean of the past alone it does
/// not lag behind a falling loss. Values that are not finite are left out.
std::vector<Point> smoothed(const std::vector<Point>& points, double half_life);

} // namespace tessera::report
