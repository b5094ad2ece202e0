#include "tessera/report/timeline_picture.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/report/chart.h"
#include "tessera/report/format.h"
#include "tessera/timeline/intervals.h"

namespace tessera::report {

namespace {

using timeline::Event;
using timeline::Interval;

constexpr double kLeft = 96;
constexpr double kTop = 26;
constexpr double kRow = 38;
constexpr double kBox = 24;
constexpr double kStrip = 6;

struct Box {
  int rank = 0;
  std::string category;
  int microbatch = -1;
  Interval time;
};

struct Step {
  Interval span;
  std::map<int, int> pp_rank_of; // rank -> pp rank, all ranks of the timeline
  std::vector<Box> boxes;
};

bool is_drawn(const std::string& category) {
  return category == "forward" || category == "backward" || category == "comm" ||
         category == "optimizer";
}

Step collect(const timeline::Timeline& timeline, int step, const PictureOptions& options) {
  Step result;
  bool any = false;
  // Waits of a lane interrupt its boxes.
  std::map<std::pair<int, int>, std::vector<Interval>> waits;
  using Key = std::tuple<int, int, std::string, int>;
  std::map<Key, std::vector<Interval>> pieces; // rank, lane, category, batch
  for (const Event& event : timeline.events) {
    result.pp_rank_of[event.rank] = event.pp_rank;
    if (event.step != step) {
      continue;
    }
    const Interval time{event.start_us, event.end_us};
    if (event.category == "wait") {
      waits[{event.rank, event.lane}].push_back(time);
    } else if (is_drawn(event.category)) {
      pieces[{event.rank, event.lane, event.category, event.microbatch}].push_back(time);
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
  std::map<Key, std::vector<Interval>> running; // lane 0 for all lanes
  for (auto& entry : pieces) {
    auto [rank, lane, category, microbatch] = entry.first;
    auto rest = timeline::united(std::move(entry.second));
    const bool computes = category == "forward" || category == "backward";
    if (computes) {
      rest = without(rest, timeline::united(waits[{rank, lane}]));
    }
    auto& all = running[{rank, 0, category, microbatch}];
    all.insert(all.end(), rest.begin(), rest.end());
  }
  const double gap = (result.span.end - result.span.start) * options.merge_share;
  for (auto& entry : running) {
    const auto& [rank, lane, category, microbatch] = entry.first;
    for (const Interval& time : timeline::united(std::move(entry.second), gap)) {
      result.boxes.push_back({rank, category, microbatch, time});
    }
  }
  return result;
}

std::string length(double value) {
  return format_number(std::max(0.0, value), 6);
}

class Drawing {
 public:
  Drawing(const Step& step, const PictureOptions& options) : step_(step), width_(options.width) {
    int row = 0;
    for (const auto& entry : step.pp_rank_of) {
      row_of_[entry.first] = row++;
    }
  }

  std::string svg(int number) const {
    const double height = kTop + kRow * static_cast<double>(row_of_.size()) + 22;
    std::string out =
        str("<svg class=\"timeline\" role=\"img\" viewBox=\"0 0 ",
            width_,
            " ",
            length(height),
            "\"><title>pipeline of step ",
            number,
            "</title>\n");
    out += rows();
    for (const Box& box : step_.boxes) {
      out += draw(box);
    }
    return out + "</svg>\n";
  }

 private:
  double x(double time_us) const {
    const double span = std::max(1e-9, step_.span.end - step_.span.start);
    return kLeft + (time_us - step_.span.start) / span * (width_ - kLeft - 12);
  }

  std::string rows() const {
    std::string out;
    const double span_ms = (step_.span.end - step_.span.start) / 1e3;
    const double bottom = kTop + kRow * static_cast<double>(row_of_.size());
    if (span_ms > 0) {
      for (const double value : ticks(0, span_ms, 10)) {
        if (value > span_ms) {
          continue;
        }
        const std::string at = length(x(step_.span.start + value * 1e3));
        out +=
            str("<line class=\"grid\" x1=\"",
                at,
                "\" x2=\"",
                at,
                "\" y1=\"",
                length(kTop - 4),
                "\" y2=\"",
                length(bottom),
                "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"",
                at,
                "\" y=\"",
                length(bottom + 16),
                "\">",
                format_number(value),
                value == 0 ? " ms" : "",
                "</text>\n");
      }
    }
    for (const auto& entry : row_of_) {
      const double y = kTop + kRow * entry.second;
      out +=
          str("<rect class=\"row\" x=\"",
              length(kLeft),
              "\" width=\"",
              length(width_ - kLeft - 12),
              "\" y=\"",
              length(y),
              "\" height=\"",
              length(kBox + kStrip + 2),
              "\"/><text class=\"tick\" text-anchor=\"end\" x=\"",
              length(kLeft - 8),
              "\" y=\"",
              length(y + 16),
              "\">rank ",
              entry.first,
              " (pp ",
              step_.pp_rank_of.at(entry.first),
              ")</text>\n");
    }
    return out;
  }

  std::string draw(const Box& box) const {
    const bool computes = box.category == "forward" || box.category == "backward";
    const double y = kTop + kRow * row_of_.at(box.rank) + (computes ? 0 : kBox + 1);
    const double left = x(box.time.start);
    const double width = std::max(0.4, x(box.time.end) - left);
    // Neighbouring microbatches differ in shade.
    const bool odd = box.microbatch >= 0 && box.microbatch % 2 == 1;
    std::string out =
        str("<rect class=\"",
            box.category,
            odd ? " odd" : "",
            "\" x=\"",
            length(left),
            "\" y=\"",
            length(y),
            "\" width=\"",
            length(width),
            "\" height=\"",
            length(computes ? kBox : kStrip),
            "\"><title>",
            escape(box.category));
    if (box.microbatch >= 0) {
      out += str(" of microbatch ", box.microbatch);
    }
    out +=
        str(" on rank ",
            box.rank,
            ": from ",
            format_number((box.time.start - step_.span.start) / 1e3, 5),
            " ms for ",
            format_seconds((box.time.end - box.time.start) / 1e6),
            "</title></rect>");
    const std::string label = str(box.microbatch);
    if (computes && box.microbatch >= 0 && width > 4 + 7.0 * static_cast<double>(label.size())) {
      out +=
          str("<text class=\"batch\" text-anchor=\"middle\" x=\"",
              length(left + width / 2),
              "\" y=\"",
              length(y + kBox / 2),
              "\" dy=\"0.35em\">",
              label,
              "</text>");
    }
    return out + "\n";
  }

  const Step& step_;
  const double width_;
  std::map<int, int> row_of_;
};

} // namespace

std::string
timeline_picture(const timeline::Timeline& timeline, int step, const PictureOptions& options) {
  Step collected = collect(timeline, step, options);
  auto& boxes = collected.boxes;
  const std::size_t total = boxes.size();
  if (total > options.most_boxes) {
    const auto length = [](const Box& box) { return box.time.end - box.time.start; };
    std::stable_sort(boxes.begin(), boxes.end(), [&length](const Box& a, const Box& b) {
      return length(a) > length(b);
    });
    boxes.resize(options.most_boxes);
  }
  std::string out = Drawing(collected, options).svg(step);
  if (total > options.most_boxes) {
    out +=
        str("<p class=\"note\">The ",
            total - options.most_boxes,
            " shortest of ",
            total,
            " boxes are left out; the Chrome trace has all.</p>\n");
  }
  return out;
}

} // namespace tessera::report
