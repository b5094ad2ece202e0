#include "tessera/report/partition_tree.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/report/format.h"

namespace tessera::report {

namespace {

// Splits "layers.12" into {"layers", 12}; a label without a number at the end has -1.
std::pair<std::string, int> split_number(const std::string& label) {
  const std::size_t digits = label.find_last_not_of("0123456789") + 1;
  constexpr std::size_t kMostDigits = 8;
  if (digits == label.size() || label.size() - digits > kMostDigits ||
      (digits > 0 && label[digits - 1] != '.')) {
    return {label, -1};
  }
  return {label.substr(0, digits == 0 ? 0 : digits - 1), std::atoi(label.c_str() + digits)};
}

class BoxWriter {
 public:
  BoxWriter(const PartitionView& view, bool every_node) : view_(view), every_node_(every_node) {
    const auto& nodes = view.tree.nodes;
    whole_.assign(nodes.size(), true);
    modules_.assign(nodes.size(), 0);
    for (std::size_t n = nodes.size(); n-- > 0;) {
      modules_[n] += static_cast<int>(nodes[n].modules.size());
      if (n > 0) {
        const int parent = nodes[n].parent;
        modules_[parent] += modules_[n];
        whole_[parent] = whole_[parent] && whole_[n] && view.partition[n] == view.partition[parent];
      }
    }
  }

  std::vector<PartitionBox> write() {
    add(0, "", -1);
    return std::move(boxes_);
  }

 private:
  // Returns the paths of the node's modules, without the parent's path where that is a prefix.
  std::string label_of(int node, int parent) const {
    const std::string& above = view_.graph.modules[view_.tree.nodes[parent].modules.front()].path;
    std::string label;
    for (const int module : view_.tree.nodes[node].modules) {
      std::string path = view_.graph.modules[module].path;
      if (!above.empty() && path.rfind(above + ".", 0) == 0) {
        path = path.substr(above.size() + 1);
      }
      label += (label.empty() ? "" : " + ") + path;
    }
    return label;
  }

  int add(int node, std::string label, int parent_box) {
    PartitionBox box;
    box.label = std::move(label);
    const auto& members = view_.tree.nodes[node].modules;
    box.type = view_.graph.modules[members.front()].type;
    box.cost = view_.cost[node];
    box.partition = view_.partition[node];
    box.modules = modules_[node];
    const int index = static_cast<int>(boxes_.size());
    if (parent_box >= 0) {
      box.depth = boxes_[parent_box].depth + 1;
      boxes_[parent_box].children.push_back(index);
    }
    boxes_.push_back(std::move(box));
    if (every_node_ || !whole_[node]) {
      add_children(node, index);
    }
    return index;
  }

  void add_children(int node, int box) {
    const auto& children = view_.tree.nodes[node].children;
    for (std::size_t i = 0; i < children.size();) {
      const std::string label = label_of(children[i], node);
      const std::size_t end = end_of_run(node, children, i);
      const int added = add(children[i], label, box);
      if (end - i > 1) {
        const auto [stem, number] = split_number(label);
        PartitionBox& run = boxes_[added];
        run.label = str(stem, "[", number, ":", number + (end - i), "]");
        for (std::size_t k = i + 1; k < end; ++k) {
          run.cost += view_.cost[children[k]];
          run.modules += modules_[children[k]];
        }
      }
      i = end;
    }
  }

  // Returns one past the last of the siblings that are drawn as one box with the first.
  std::size_t end_of_run(int node, const std::vector<int>& children, std::size_t first) const {
    const auto [stem, number] = split_number(label_of(children[first], node));
    std::size_t end = first + 1;
    if (every_node_ || number < 0 || !whole_[children[first]]) {
      return end;
    }
    while (end < children.size() && whole_[children[end]] &&
           view_.partition[children[end]] == view_.partition[children[first]]) {
      const int expected = number + static_cast<int>(end - first);
      if (split_number(label_of(children[end], node)) !=
          std::pair<std::string, int>(stem, expected)) {
        break;
      }
      ++end;
    }
    return end;
  }

  const PartitionView& view_;
  bool every_node_;
  std::vector<bool> whole_; // all of the sub-tree on the node's partition
  std::vector<int> modules_;
  std::vector<PartitionBox> boxes_;
};

// Returns the columns on a terminal, which for names and box-drawing characters is the
// number of code points.
std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string pad(const std::string& text, std::size_t width) {
  const std::size_t have = columns(text);
  return have < width ? text + std::string(width - have, ' ') : text;
}

std::string in_colour(const std::string& text, int partition, bool colour) {
  // These six are readable on dark and light terminals.
  constexpr int kColours = 6;
  return colour ? str("\033[", 31 + partition % kColours, "m", text, "\033[0m") : text;
}

// Returns the lines that lead to each box, in pre-order of the boxes. The vertical line
// of a branch ends with its last child.
std::vector<std::string> draw_branches(const std::vector<PartitionBox>& boxes) {
  std::vector<std::string> branch(boxes.size());
  std::vector<std::string> below(boxes.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (const int child : boxes[i].children) {
      const bool last = child == boxes[i].children.back();
      branch[child] = below[i] + (last ? "└─ " : "├─ ");
      below[child] = below[i] + (last ? "   " : "│  ");
    }
  }
  return branch;
}

std::string bars(const PartitionView& view, bool colour) {
  constexpr double kWidth = 40;
  double largest = 0;
  for (const double total : view.total) {
    largest = std::max(largest, total);
  }
  std::string text =
      str("\npartition   cost  (even: ",
          format_fixed(1.0 / static_cast<double>(view.total.size())),
          ")\n");
  for (std::size_t i = 0; i < view.total.size(); ++i) {
    std::string bar;
    const std::int64_t length = largest > 0 ? std::llround(kWidth * view.total[i] / largest) : 0;
    for (std::int64_t k = 0; k < length; ++k) {
      bar += "█";
    }
    const int partition = static_cast<int>(i);
    const std::string number = str(partition);
    text +=
        str(std::string(9 - std::min<std::size_t>(9, number.size()), ' '),
            number,
            "  ",
            format_fixed(view.total[i]),
            "  ",
            in_colour(bar, partition, colour),
            "\n");
  }
  return text;
}

} // namespace

std::vector<PartitionBox> partition_boxes(const PartitionView& view, bool every_node) {
  return BoxWriter(view, every_node).write();
}

std::string partition_tree_text(const PartitionView& view, bool every_node, bool colour) {
  const std::vector<PartitionBox> boxes = partition_boxes(view, every_node);
  const std::vector<std::string> branches = draw_branches(boxes);
  std::vector<std::string> names;
  std::size_t width = columns("module");
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    names.push_back(
        i == 0 ? (view.graph.name.empty() ? "(model)" : view.graph.name)
               : branches[i] + boxes[i].label);
    width = std::max(width, columns(names.back()));
  }
  std::string text = pad("module", width) + "  cost    partition\n";
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    text +=
        str(pad(names[i], width),
            "  ",
            format_fixed(boxes[i].cost),
            "  ",
            in_colour(str(boxes[i].partition), boxes[i].partition, colour),
            "\n");
  }
  text += bars(view, colour);
  for (const std::string& warning : view.warnings) {
    text += "\nwarning: " + warning + "\n";
  }
  return text;
}

std::string partition_tree_json(const PartitionView& view) {
  using Json = nlohmann::ordered_json;
  Json nodes = Json::array();
  for (std::size_t n = 0; n < view.tree.nodes.size(); ++n) {
    Json modules = Json::array();
    for (const int module : view.tree.nodes[n].modules) {
      modules.push_back(view.graph.modules[module].path);
    }
    nodes.push_back(
        {{"path", modules.front()},
         {"cost", view.cost[n]},
         {"partition", view.partition[n]},
         {"modules", modules}});
  }
  const Json file = {
      {"model", view.graph.name},
      {"pipeline_parallel_degree", view.total.size()},
      {"memory_weight", view.memory_weight},
      {"nodes", std::move(nodes)},
      {"totals", view.total},
      {"warnings", view.warnings}};
  // Names come from users' modules; bytes that are no UTF-8 are replaced, since dump would throw.
  return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace tessera::report
