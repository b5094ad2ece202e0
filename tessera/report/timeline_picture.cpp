#include "tessera/report/timeline_picture.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/report/chart.h"
#include "tessera/report/format.h"
#include "tessera/report/markup.h"
#include "tessera/timeline/intervals.h"

namespace tessera::report {

namespace {

using timeline::Event;
using timeline::Interval;

// Lengths along y are in pixels; those along x are in percent of the picture's width.
constexpr double kRow = 40;
constexpr double kBox = 24;
constexpr double kStrip = 7;
constexpr double kAxis = 42; // below the rows
constexpr double kNarrowest = 640; // of the drawing at zoom 1, as in report_style.h
constexpr std::array kZooms = {1, 2, 4, 8};
constexpr std::array kCategories = {"forward", "backward", "optimizer", "comm"};

struct Box {
  int rank = 0;
  std::string category;
  int microbatch = -1;
  std::string name; // of the event; "" for forward and backward
  Interval time;
};

struct Step {
  Interval span;
  std::map<int, int> pp_rank_of; // rank -> pp rank, all ranks of the timeline
  std::vector<Box> boxes;
};

bool is_drawn(const std::string& category) {
  return std::find(kCategories.begin(), kCategories.end(), category) != kCategories.end();
}

bool computes(const std::string& category) {
  return category == "forward" || category == "backward";
}

Step collect(const timeline::Timeline& timeline, int step, const PictureOptions& options) {
  Step result;
  bool any = false;
  // Waits of a lane interrupt its boxes.
  std::map<std::pair<int, int>, std::vector<Interval>> waits;
  using Key = std::tuple<int, int, std::string, int, std::string>;
  std::map<Key, std::vector<Interval>> pieces; // rank, lane, category, microbatch, name
  for (const Event& event : timeline.events) {
    result.pp_rank_of[event.rank] = event.pp_rank;
    if (event.step != step) {
      continue;
    }
    const Interval time{event.start_us, event.end_us};
    if (event.category == "wait") {
      waits[{event.rank, event.lane}].push_back(time);
    } else if (is_drawn(event.category)) {
      const std::string name = computes(event.category) ? "" : event.name;
      pieces[{event.rank, event.lane, event.category, event.microbatch, name}].push_back(time);
      if (!any) {
        result.span = time;
        any = true;
      }
      result.span.start = std::min(result.span.start, time.start);
      result.span.end = std::max(result.span.end, time.end);
    }
  }
  if (!any) {
    throw Error(str("timeline: step ", step, " has no event that can be drawn"));
  }
  std::map<Key, std::vector<Interval>> running; // all lanes of a rank are joined as lane 0
  for (auto& entry : pieces) {
    const auto& [rank, lane, category, microbatch, name] = entry.first;
    auto rest = timeline::united(std::move(entry.second));
    if (computes(category)) {
      rest = without(rest, timeline::united(waits[{rank, lane}]));
    }
    auto& all = running[{rank, 0, category, microbatch, name}];
    all.insert(all.end(), rest.begin(), rest.end());
  }
  const double gap = (result.span.end - result.span.start) * options.merge_share;
  for (auto& entry : running) {
    const auto& [rank, lane, category, microbatch, name] = entry.first;
    for (const Interval& time : timeline::united(std::move(entry.second), gap)) {
      result.boxes.push_back({rank, category, microbatch, name, time});
    }
  }
  return result;
}

double length_of(const Step& step) {
  return step.span.end - step.span.start;
}

// Rows of a rank follow each other: that of the run, then that of the simulation.
class Picture {
 public:
  explicit Picture(const std::vector<Step>& layers) : layers_(layers) {
    int row = 0;
    for (const auto& entry : layers.front().pp_rank_of) {
      row_of_[entry.first] = row;
      row += static_cast<int>(layers.size());
    }
    for (const Step& layer : layers) {
      length_us_ = std::max(length_us_, length_of(layer));
    }
  }

  std::string html(int number) const {
    std::string labels;
    std::string drawing;
    for (const auto& [rank, first] : row_of_) {
      for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        const std::string what = layer == 0
                                     ? fill(
                                           "rank {} <i>(pp {})</i>",
                                           {str(rank), str(layers_.front().pp_rank_of.at(rank))})
                                     : "<i>simulated</i>";
        labels += fill("<span style=\"height:{}px\">{}</span>\n", {attribute(kRow), what});
        drawing += fill(
            "<rect class=\"row\" width=\"100%\" y=\"{}\" height=\"{}\"/>\n",
            {attribute(kRow * (first + static_cast<int>(layer))), attribute(kBox + kStrip + 2)});
      }
    }
    drawing += axis();
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      for (const Box& box : layers_[layer].boxes) {
        drawing += draw(box, static_cast<int>(layer));
      }
    }
    return fill(
        "<div class=\"timeline\"><div class=\"ranks\">\n{}</div><div class=\"scroll\">"
        "<svg width=\"100%\" height=\"{}\" role=\"img\" aria-label=\"pipeline of step {}\">\n"
        "{}</svg></div></div>\n",
        {labels, attribute(bottom() + kAxis), str(number), drawing});
  }

 private:
  double bottom() const {
    return kRow * static_cast<double>(row_of_.size() * layers_.size());
  }

  /// Returns a time since the step's start in percent of the step.
  double x(double microseconds) const {
    return microseconds / std::max(1e-9, length_us_) * 100;
  }

  std::string axis() const {
    std::string out;
    const double span_ms = length_us_ / 1e3;
    if (span_ms <= 0) {
      return out;
    }
    for (const double value : ticks(0, span_ms, 8)) {
      if (value > span_ms * 0.99) {
        continue; // its label would not fit
      }
      const std::string at = attribute(x(value * 1e3)) + "%";
      out += fill(
          "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y2=\"{}\"/>"
          "<text class=\"tick\" text-anchor=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n",
          {at,
           at,
           attribute(bottom()),
           value == 0 ? "start" : "middle",
           at,
           attribute(bottom() + 15),
           format_number(value)});
    }
    return out + fill(
                     "<text class=\"tick\" text-anchor=\"middle\" x=\"50%\" y=\"{}\">"
                     "milliseconds since the step began</text>\n",
                     {attribute(bottom() + 34)});
  }

  /// Returns the microbatch's number, which is shown from the zoom on at which it fits.
  static std::string label(const Box& box, double left, double width, double y) {
    const std::string text = str(box.microbatch);
    const double needed = 4 + 7.0 * static_cast<double>(text.size());
    for (const int zoom : kZooms) {
      if (width / 100 * kNarrowest * zoom > needed) {
        return fill(
            "<text class=\"batch{}{}\" text-anchor=\"middle\" x=\"{}%\" y=\"{}\" dy=\"0.35em\">{}"
            "</text>",
            {box.microbatch % 2 == 1 ? " odd" : "",
             zoom > 1 ? str(" from", zoom) : "",
             attribute(left + width / 2),
             attribute(y),
             text});
      }
    }
    return "";
  }

  std::string draw(const Box& box, int layer) const {
    const bool numbered = computes(box.category) && box.microbatch >= 0;
    const double top = kRow * (row_of_.at(box.rank) + layer);
    const Interval& span = layers_[static_cast<std::size_t>(layer)].span;
    const double y = box.category == "comm" ? top + kBox + 1 : top;
    const double begin = box.time.start - span.start;
    const double left = x(begin);
    const double width = std::max(0.04, x(box.time.end - span.start) - left);
    std::string what = box.category == "comm" ? "communication" : box.category;
    if (layer > 0) {
      what = "simulated " + what;
    }
    if (numbered) {
      what += str(" of microbatch ", box.microbatch);
    } else if (!box.name.empty() && box.name != what) {
      what += ": " + box.name;
    }
    std::string out = fill(
        "<rect class=\"{}{}\" x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"{}\"><title>{} on rank {}: "
        "from {} ms for {}</title></rect>",
        {box.category,
         numbered && box.microbatch % 2 == 1 ? " odd" : "", // neighbours differ in shade
         attribute(left),
         attribute(y),
         attribute(width),
         attribute(box.category == "comm" ? kStrip : kBox),
         escape(what),
         str(box.rank),
         format_number(begin / 1e3, 5),
         format_seconds((box.time.end - box.time.start) / 1e6)});
    return out + (numbered ? label(box, left, width, y + kBox / 2) : "") + "\n";
  }

  const std::vector<Step>& layers_; // of the run, and of its simulation
  double length_us_ = 0;
  std::map<int, int> row_of_; // the first of a rank
};

std::string picture_of(std::vector<Step> layers, int number, const PictureOptions& options) {
  std::string notes;
  for (Step& layer : layers) {
    auto& boxes = layer.boxes;
    const std::size_t total = boxes.size();
    if (total <= options.most_boxes) {
      continue;
    }
    const auto length = [](const Box& box) { return box.time.end - box.time.start; };
    std::stable_sort(boxes.begin(), boxes.end(), [&length](const Box& a, const Box& b) {
      return length(a) > length(b);
    });
    boxes.resize(options.most_boxes);
    notes +=
        str("<p class=\"note\">The ",
            total - options.most_boxes,
            " shortest of ",
            total,
            " boxes are left out; the Chrome trace has all.</p>\n");
  }
  return Picture(layers).html(number) + notes;
}

// The step that a simulation is of.
int simulated_step(const timeline::Timeline& simulated) {
  const std::vector<int> steps = timeline::steps(simulated);
  if (steps.size() != 1) {
    throw Error(str("timeline: a simulation has one step, this one has ", steps.size()));
  }
  return steps.front();
}

} // namespace

std::string
timeline_picture(const timeline::Timeline& timeline, int step, const PictureOptions& options) {
  return picture_of({collect(timeline, step, options)}, step, options);
}

std::string timeline_picture(
    const timeline::Timeline& timeline,
    int step,
    const timeline::Timeline& simulated,
    const PictureOptions& options) {
  std::vector<Step> layers = {
      collect(timeline, step, options), collect(simulated, simulated_step(simulated), options)};
  if (layers[0].pp_rank_of != layers[1].pp_rank_of) {
    throw Error(
        "timeline: the simulation has other ranks or stages than the run; simulate the strategy "
        "that was run");
  }
  return picture_of(std::move(layers), step, options);
}

double drawn_us(const timeline::Timeline& timeline, int step) {
  return length_of(collect(timeline, step, {}));
}

std::vector<std::string> drawn_categories(const timeline::Timeline& timeline) {
  std::vector<std::string> found;
  for (const char* category : kCategories) {
    const auto is = [category](const Event& event) { return event.category == category; };
    if (std::any_of(timeline.events.begin(), timeline.events.end(), is)) {
      found.emplace_back(category);
    }
  }
  return found;
}

} // namespace tessera::report
