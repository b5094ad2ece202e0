#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::report {

using Point = std::pair<double, double>;

/// One line, or one set of dots, of a chart.
struct Series {
  std::string name; // for the legend
  std::string style; // CSS class: "raw", "main", "second", or one of the page's own
  bool dots = false; // points joined by a line, with a dot each
  std::vector<Point> points; // ascending x; a y that is NaN breaks the line
  std::string readout = {}; // what precedes a value under the pointer, "" for nothing
};

struct ChartOptions {
  std::string title; // with the unit of y
  std::string x_label; // with the unit of x
  std::string x_name; // of a value of x under the pointer: "step"
  std::function<std::string(double)> y_text; // of a tick and of a value
  /// Of a tick and of a value of x; empty writes numbers out, with ticks at whole numbers alone.
  std::function<std::string(double)> x_text = {};
  /// At a place a line shows the value of its last point before it, where it has none there: for
  /// lines whose points differ in x.
  bool last_before = false;
  bool from_zero = false; // the y axis begins at 0
  int height = 280; // of the plot, without its labels; pixels
  std::size_t readouts = 150; // largest number of places that show their values
};

/// Returns an HTML element that is as wide as its container: a title, a legend where there are
/// several series, and an SVG whose letters keep their size. Pointing at a place shows its values,
/// by style alone. A line with more points than a screen has columns is thinned to the least and
/// greatest value of each column.
std::string line_chart(const ChartOptions& options, const std::vector<Series>& series);

/// Returns about `count` round values that cover the range from `least` to `greatest`.
std::vector<double> ticks(double least, double greatest, int count);

/// Returns, for each point, the mean of all values around it, weighted by 0.5^(distance /
/// half_life) with the distance counted in points. Unlike a mean of the past alone it does not lag
/// behind a falling loss. Values that are not finite are left out.
std::vector<Point> smoothed(const std::vector<Point>& points, double half_life);

} // namespace tessera::report
