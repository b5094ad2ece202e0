#include "tessera/planner/strategies_csv.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cost/strategy_cost.h"

namespace tessera::planner {

namespace {

using Row = std::vector<std::string>;

// Splits a line. Cells in quotes may hold commas and doubled quotes; they keep their
// quotes, so that they pass through unchanged.
Row cells_of(const std::string& line) {
  Row cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    }
    if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

std::string plain(std::string cell) {
  std::erase(cell, '"');
  const auto first = cell.find_first_not_of(" \t");
  const auto last = cell.find_last_not_of(" \t");
  return first == std::string::npos ? "" : cell.substr(first, last - first + 1);
}

std::string joined(const Row& cells) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    line += (i == 0 ? "" : ",") + cells[i];
  }
  return line + "\n";
}

bool to_int(const std::string& text, int& value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

class Table {
 public:
  Table(std::string origin, const Row& header) : origin_(std::move(origin)) {
    for (const std::string& cell : header) {
      names_.push_back(plain(cell));
    }
  }

  int find(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return found == names_.end() ? -1 : static_cast<int>(found - names_.begin());
  }

  int need(const std::string& name) const {
    const int column = find(name);
    if (column < 0) {
      throw ConfigError(
          str(origin_,
              ": column \"",
              name,
              "\" is missing; needed are pp, dp, tp, mbs and "
              "layer_boundaries"));
    }
    return column;
  }

  std::size_t size() const {
    return names_.size();
  }

  std::string cell(const Row& row, const std::string& name) const {
    return plain(row[static_cast<std::size_t>(need(name))]);
  }

  int number(const Row& row, const std::string& name) const {
    const std::string text = cell(row, name);
    int value = 0;
    if (!to_int(text, value) || value < 1) {
      throw ConfigError(str(name, ": found \"", text, "\"; write a whole number, 1 or more"));
    }
    return value;
  }

  std::vector<int> boundaries(const Row& row) const {
    std::string text = cell(row, "layer_boundaries");
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
      throw ConfigError(
          str("layer_boundaries: found \"", text, "\"; write numbers as in [0;15;30]"));
    }
    std::istringstream in(text.substr(1, text.size() - 2));
    std::vector<int> numbers;
    for (std::string part; std::getline(in, part, ';');) {
      int value = 0;
      if (!to_int(plain(part), value)) {
        throw ConfigError(
            str("layer_boundaries: found \"", part, "\"; write numbers as in [0;15;30]"));
      }
      numbers.push_back(value);
    }
    return numbers;
  }

 private:
  std::string origin_;
  Row names_;
};

std::string text_of(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

} // namespace

std::string price_table(
    const std::string& csv,
    const std::string& origin,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants) {
  std::istringstream in(csv);
  std::string line;
  const auto next_line = [&in, &line] {
    if (!std::getline(in, line)) {
      return false;
    }
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    return true;
  };
  if (!next_line()) {
    throw ConfigError(str(origin, ": is empty; write a line of column names"));
  }
  Row header = cells_of(line);
  const Table table(origin, header);
  for (const char* name : {"pp", "dp", "tp", "mbs", "layer_boundaries"}) {
    table.need(name);
  }
  int predicted = table.find("predicted_s");
  int memory = table.find("memory_gib");
  if (predicted < 0) {
    predicted = static_cast<int>(header.size());
    header.emplace_back("predicted_s");
  }
  if (memory < 0) {
    memory = static_cast<int>(header.size());
    header.emplace_back("memory_gib");
  }
  std::vector<int> order(static_cast<std::size_t>(cluster.device_count()));
  std::iota(order.begin(), order.end(), 0);
  std::string out = joined(header);
  for (int number = 2; next_line(); ++number) {
    if (plain(line).empty()) {
      continue;
    }
    Row row = cells_of(line);
    try {
      if (row.size() != table.size()) {
        throw ConfigError(str("found ", row.size(), " cells; the first line names ", table.size()));
      }
      cost::Strategy strategy;
      strategy.pp = table.number(row, "pp");
      strategy.dp = table.number(row, "dp");
      strategy.tp = table.number(row, "tp");
      strategy.microbatch_size = table.number(row, "mbs");
      strategy.boundaries = table.boundaries(row);
      strategy.activation_checkpointing = model.activation_checkpointing;
      if (table.find("placement") >= 0) {
        strategy.placement = table.cell(row, "placement");
      }
      // lay_out needs degrees that fill the cluster, so validate them first.
      strategy.device_of_rank = order;
      cost::validate(
          strategy,
          cluster.device_count(),
          static_cast<int>(model.layers.size()),
          model.global_batch_size);
      strategy.device_of_rank = cost::lay_out(strategy, strategy.placement, order);
      const cost::StrategyCost priced = cost::price(model, cluster, strategy, constants);
      row.resize(header.size());
      row[static_cast<std::size_t>(predicted)] =
          priced.fits() ? text_of(priced.seconds, "%.6f") : "inf";
      row[static_cast<std::size_t>(memory)] = text_of(priced.needed_bytes() / (1 << 30), "%.3f");
    } catch (const ConfigError& error) {
      throw ConfigError(str(origin, ": line ", number, ": ", error.what()));
    }
    out += joined(row);
  }
  return out;
}

} // namespace tessera::planner
