#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/report/format.h"
#include "tessera/report/partition_tree.h"

// The drawing has a header with the name and one legend entry ("chip") for each
// partition. Below it the tree grows from left to right: each leaf has a row, each
// parent is in the middle of its children. All lengths are in pixels.
namespace tessera::report {

namespace {

constexpr double kMargin = 24;
constexpr double kBoxHeight = 40;
constexpr double kRow = 50;
constexpr double kHeader = 76;
constexpr double kColumnGap = 56;
constexpr double kLetter = 8.4; // width of a bold letter at 13 px
constexpr double kSmallestBox = 156;
constexpr double kChipWidth = 206;
constexpr double kChipRow = 26;
constexpr double kLeastWidth = 2 * kMargin + 4 * kChipWidth;

// Returns the colour of a partition. Twelve were chosen by hand; further ones step round
// the colour circle by the golden angle, which keeps neighbours apart.
std::string colour_of(int partition) {
  constexpr std::array<const char*, 12> kFirst = {
      "#3366cc",
      "#e07b00",
      "#2a9d4a",
      "#c0392b",
      "#7d4fc4",
      "#8c6d46",
      "#d457a5",
      "#5f6b75",
      "#a0a000",
      "#1399a8",
      "#6a8f2f",
      "#b5651d"};
  if (partition < static_cast<int>(kFirst.size())) {
    return kFirst[partition];
  }
  return str("hsl(", partition * 137 % 360, ",55%,45%)");
}

// Replaces bytes that are no UTF-8 by U+FFFD and escapes the text. Names come from
// users' modules, and one such byte would keep a browser from showing the whole file.
std::string readable(const std::string& text) {
  using Json = nlohmann::json;
  return escape(Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
                    .get<std::string>());
}

// Returns the position at or before `at` where a UTF-8 character begins.
std::size_t letter_at(const std::string& text, std::size_t at) {
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
    --at;
  }
  return at;
}

std::string shorten(const std::string& label) {
  constexpr std::size_t kLongest = 40;
  if (label.size() <= kLongest) {
    return label;
  }
  return label.substr(0, letter_at(label, kLongest / 2)) + "…" +
         label.substr(letter_at(label, label.size() - kLongest / 2));
}

class Drawing {
 public:
  explicit Drawing(const PartitionView& view) : view_(view), boxes_(partition_boxes(view)) {
    place();
  }

  std::string svg() const {
    std::string body = header();
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      for (const int child : boxes_[i].children) {
        body += link(static_cast<int>(i), child);
      }
    }
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      body += box(static_cast<int>(i));
    }
    return str(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
        width_,
        "\" height=\"",
        height_,
        "\" viewBox=\"0 0 ",
        width_,
        " ",
        height_,
        "\" font-family=\"system-ui,Helvetica,Arial,sans-serif\" "
        "font-size=\"13\" fill=\"#1d2731\">\n"
        "<title>Partition of ",
        readable(name(0)),
        "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        body,
        "</svg>\n");
  }

 private:
  std::string name(int i) const {
    if (i > 0) {
      return boxes_[i].label;
    }
    return view_.graph.name.empty() ? "model" : view_.graph.name;
  }

  int chips_per_row() const {
    return std::max(1, static_cast<int>((width_ - 2 * kMargin) / kChipWidth));
  }

  void place() {
    std::vector<double> column_width;
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      column_width.resize(
          std::max<std::size_t>(column_width.size(), boxes_[i].depth + 1), kSmallestBox);
      double& width = column_width[boxes_[i].depth];
      width = std::max(
          width, 24 + kLetter * static_cast<double>(shorten(name(static_cast<int>(i))).size()));
    }
    double x = kMargin;
    for (const double width : column_width) {
      column_x_.push_back(x);
      x += width + kColumnGap;
    }
    box_width_ = column_width;
    width_ = std::max(kLeastWidth, x - kColumnGap + kMargin);
    const int rows = (static_cast<int>(view_.total.size()) + chips_per_row() - 1) / chips_per_row();
    tree_top_ = kMargin + kHeader + kChipRow * rows + 20;
    // Leaves are placed from the top down, in pre-order; then parents, backwards, because
    // children follow their parents and must be placed first.
    y_.assign(boxes_.size(), 0);
    double leaf_y = tree_top_;
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      if (boxes_[i].children.empty()) {
        y_[i] = leaf_y;
        leaf_y += kRow;
      }
    }
    for (std::size_t i = boxes_.size(); i-- > 0;) {
      if (!boxes_[i].children.empty()) {
        y_[i] = (y_[boxes_[i].children.front()] + y_[boxes_[i].children.back()]) / 2;
      }
    }
    height_ =
        leaf_y - kRow + kBoxHeight + kMargin + 20 * static_cast<double>(view_.warnings.size());
  }

  std::string header() const {
    std::string text =
        str("<text x=\"",
            kMargin,
            "\" y=\"",
            kMargin + 18,
            "\" font-size=\"20\" font-weight=\"600\">",
            readable(name(0)),
            "</text>\n<text x=\"",
            kMargin,
            "\" y=\"",
            kMargin + 40,
            "\" fill=\"#56636f\">",
            view_.total.size(),
            view_.total.size() == 1 ? " partition" : " partitions",
            ", memory weight ",
            view_.memory_weight,
            ", even share ",
            format_fixed(1.0 / static_cast<double>(view_.total.size())),
            "</text>\n<text x=\"",
            kMargin,
            "\" y=\"",
            kMargin + 58,
            "\" fill=\"#56636f\">A box says what share of the model it costs and "
            "where it runs; a dashed line is a call to another "
            "partition.</text>\n");
    const double largest =
        std::max(1e-12, *std::max_element(view_.total.begin(), view_.total.end()));
    for (std::size_t i = 0; i < view_.total.size(); ++i) {
      const int row = static_cast<int>(i) / chips_per_row();
      const int column = static_cast<int>(i) % chips_per_row();
      text += chip(
          static_cast<int>(i),
          kMargin + column * kChipWidth,
          kMargin + kHeader + row * kChipRow,
          view_.total[i] / largest);
    }
    for (std::size_t i = 0; i < view_.warnings.size(); ++i) {
      text +=
          str("<text x=\"",
              kMargin,
              "\" y=\"",
              height_ - 20 * static_cast<double>(view_.warnings.size() - i) + 4,
              "\" fill=\"#a33\">warning: ",
              readable(view_.warnings[i]),
              "</text>\n");
    }
    return text;
  }

  // Returns one entry of the legend: colour, number, total and bar of a partition.
  std::string chip(int partition, double x, double y, double share) const {
    constexpr double kBarLeft = 110;
    constexpr double kBarWidth = kChipWidth - kBarLeft - 20;
    const std::string colour = colour_of(partition);
    return str(
        "<g><title>partition ",
        partition,
        ": ",
        format_fixed(view_.total[partition]),
        "</title><rect x=\"",
        x,
        "\" y=\"",
        y,
        "\" width=\"16\" height=\"16\" rx=\"3\" fill=\"",
        colour,
        "\"/><text x=\"",
        x + 23,
        "\" y=\"",
        y + 13,
        "\" font-weight=\"600\">",
        partition,
        "</text><text x=\"",
        x + kBarLeft - 8,
        "\" y=\"",
        y + 13,
        "\" text-anchor=\"end\">",
        format_fixed(view_.total[partition]),
        "</text><rect x=\"",
        x + kBarLeft,
        "\" y=\"",
        y + 3,
        "\" width=\"",
        kBarWidth,
        "\" height=\"10\" rx=\"2\" fill=\"#eef1f4\"/><rect x=\"",
        x + kBarLeft,
        "\" y=\"",
        y + 3,
        "\" width=\"",
        kBarWidth * share,
        "\" height=\"10\" rx=\"2\" fill=\"",
        colour,
        "\"/></g>\n");
  }

  std::string link(int from, int to) const {
    const double x1 = column_x_[boxes_[from].depth] + box_width_[boxes_[from].depth];
    const double x2 = column_x_[boxes_[to].depth];
    const double y1 = y_[from] + kBoxHeight / 2;
    const double y2 = y_[to] + kBoxHeight / 2;
    const double middle = (x1 + x2) / 2;
    // A call to another partition is sent as a message and drawn dashed.
    const bool message = boxes_[from].partition != boxes_[to].partition;
    return str(
        "<path d=\"M",
        x1,
        " ",
        y1,
        " C",
        middle,
        " ",
        y1,
        " ",
        middle,
        " ",
        y2,
        " ",
        x2,
        " ",
        y2,
        "\" fill=\"none\" stroke=\"",
        message ? "#7a8794" : "#c5ced6",
        "\" stroke-width=\"1.5\"",
        message ? " stroke-dasharray=\"5 4\"" : "",
        "/>\n");
  }

  std::string box(int i) const {
    const PartitionBox& box = boxes_[i];
    const double x = column_x_[box.depth];
    const double y = y_[i];
    const double width = box_width_[box.depth];
    const std::string colour = colour_of(box.partition);
    return str(
        "<g><title>",
        readable(name(i)),
        " (",
        readable(box.type),
        ", ",
        box.modules,
        box.modules == 1 ? " module" : " modules",
        "): cost ",
        format_fixed(box.cost),
        ", partition ",
        box.partition,
        "</title><rect x=\"",
        x,
        "\" y=\"",
        y,
        "\" width=\"",
        width,
        "\" height=\"",
        kBoxHeight,
        "\" rx=\"5\" fill=\"",
        colour,
        "\" fill-opacity=\"0.16\" stroke=\"",
        colour,
        "\"/><rect x=\"",
        x,
        "\" y=\"",
        y,
        "\" width=\"6\" height=\"",
        kBoxHeight,
        "\" rx=\"3\" fill=\"",
        colour,
        "\"/><text x=\"",
        x + 14,
        "\" y=\"",
        y + 17,
        "\" font-weight=\"600\">",
        readable(shorten(name(i))),
        "</text><text x=\"",
        x + 14,
        "\" y=\"",
        y + 33,
        "\" font-size=\"12\">",
        format_fixed(box.cost),
        " on partition ",
        box.partition,
        "</text></g>\n");
  }

  const PartitionView& view_;
  std::vector<PartitionBox> boxes_;
  std::vector<double> column_x_;
  std::vector<double> box_width_; // per column
  std::vector<double> y_; // top of every box
  double width_ = 0;
  double height_ = 0;
  double tree_top_ = 0;
};

} // namespace

std::string partition_tree_svg(const PartitionView& view) {
  return Drawing(view).svg();
}

} // namespace tessera::report
