#include "tessera/planner/strategies_csv.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cost/strategy_cost.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

using Row = std::vector<std::string>;

std::string joined_with(const std::vector<std::string>& parts, const std::string& between) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : between) + part;
  }
  return text;
}

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

constexpr std::array<std::string_view, 5> kNeeded = {"pp", "dp", "tp", "mbs", "layer_boundaries"};
constexpr std::array<std::string_view, 10> kOptional = {
    "placement",
    "node_order",
    "nodes",
    "global_batch",
    "zero",
    "recompute",
    "recomputation_stops_early",
    "stages_per_rank",
    "fast_mode",
    "sequence"};

// Returns what two spellings of a column's name have in common: small letters and digits, without
// an s or a word for a number at the end.
std::string stem(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  for (const std::string_view end : {"size", "length", "s"}) {
    if (text.size() > end.size() && text.ends_with(end)) {
      text.resize(text.size() - end.size());
      break;
    }
  }
  return text;
}

class Table {
 public:
  Table(std::string origin, const Row& header) : origin_(std::move(origin)) {
    for (const std::string& cell : header) {
      names_.push_back(plain(cell));
    }
    for (const std::string_view known : kNeeded) {
      need(std::string(known));
    }
    for (const std::string_view known : kOptional) {
      refuse_other_spellings(std::string(known));
    }
  }

  int find(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found != names_.end() && std::find(found + 1, names_.end(), name) != names_.end()) {
      throw ConfigError(str(origin_, ": column \"", name, "\" stands twice; write each name once"));
    }
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

  int number_or(const Row& row, const std::string& name, int otherwise) const {
    return find(name) < 0 ? otherwise : number(row, name);
  }

  /// Returns one of `choices`.
  int choice_or(
      const Row& row,
      const std::string& name,
      const std::vector<std::string>& choices,
      int otherwise) const {
    if (find(name) < 0) {
      return otherwise;
    }
    const std::string text = cell(row, name);
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      throw ConfigError(str(name, ": found \"", text, "\"; write ", joined_with(choices, " or ")));
    }
    return text.front() - '0';
  }

  std::vector<int> list(const Row& row, const std::string& name) const {
    const auto refuse = [&name](const std::string& found) -> ConfigError {
      return ConfigError(str(name, ": found \"", found, "\"; write numbers as in [0;15;30]"));
    };
    const std::string text = cell(row, name);
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
      throw refuse(text);
    }
    std::istringstream in(text.substr(1, text.size() - 2));
    std::vector<int> numbers;
    for (std::string part; std::getline(in, part, ';');) {
      int value = 0;
      if (!to_int(plain(part), value)) {
        throw refuse(part);
      }
      numbers.push_back(value);
    }
    return numbers;
  }

 private:
  // A column passes through under any name that is not known, so one that is meant would be lost.
  void refuse_other_spellings(const std::string& known) const {
    for (const std::string& name : names_) {
      if (name != known && stem(name) == stem(known)) {
        throw ConfigError(
            str(origin_,
                ": column \"",
                name,
                "\"; write \"",
                known,
                "\", or another name if it is not meant"));
      }
    }
  }

  std::string origin_;
  Row names_;
};

std::string formatted(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Returns the model with the batch, the sequence and the recomputation of a row.
cost::DescribedModel
model_of(const Table& table, const Row& row, const cost::DescribedModel& model) {
  cost::DescribedModel own = model;
  own.global_batch_size = table.number_or(row, "global_batch", model.global_batch_size);
  if (table.find("sequence") >= 0) {
    if (model.sized() == nullptr) {
      throw ConfigError(
          "sequence: the model's seconds were measured at one length; leave the column out");
    }
    own = cost::with_sequence(std::move(own), table.number(row, "sequence"));
  }
  if (table.find("recomputation_stops_early") >= 0) {
    if (own.sized() == nullptr) {
      throw ConfigError(
          "recomputation_stops_early: the model's seconds were measured; leave the column out");
    }
    std::get<cost::SizedModel>(own.source).recomputation_stops_early =
        table.choice_or(row, "recomputation_stops_early", {"0", "1"}, 0) == 1;
  }
  return own;
}

PricedRow price_row(
    const Table& table,
    const Row& row,
    const cost::DescribedModel& all,
    const cost::Cluster& cluster,
    const cost::Constants& constants) {
  PricedRow priced{.cells = row};
  const cost::DescribedModel model = model_of(table, row, all);
  cost::Strategy strategy;
  strategy.pp = table.number(row, "pp");
  strategy.dp = table.number(row, "dp");
  strategy.tp = table.number(row, "tp");
  strategy.microbatch_size = table.number(row, "mbs");
  strategy.boundaries = table.list(row, "layer_boundaries");
  strategy.stages_per_rank = table.number_or(row, "stages_per_rank", 1);
  if (strategy.stages_per_rank > 1) {
    // What Megatron's interleaved order holds: a microbatch for each rank, and once more for one
    // turn of them.
    strategy.active_microbatches =
        strategy.pp + (strategy.pp + strategy.stages_per_rank - 1) / strategy.stages_per_rank;
  }
  strategy.fast_mode = table.choice_or(row, "fast_mode", {"0", "1"}, 0) == 1;
  strategy.activation_checkpointing =
      table.choice_or(row, "recompute", {"0", "1"}, model.activation_checkpointing ? 1 : 0) == 1;
  const int zero = table.choice_or(row, "zero", {"0", "1", "3"}, 0);
  strategy.shard_optimizer_state = zero > 0;
  strategy.shard_parameters = zero == 3;
  if (table.find("placement") >= 0) {
    strategy.placement = table.cell(row, "placement");
  }
  std::vector<int> nodes(cluster.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  if (table.find("node_order") >= 0) {
    nodes = table.list(row, "node_order");
    check_node_order(nodes, cluster, "node_order");
  }
  const std::vector<int> order = devices_in_order(cluster, nodes);
  const auto& cuts = strategy.boundaries;
  const bool whole = cuts.size() == static_cast<std::size_t>(strategy.stages()) + 1 &&
                     cuts.front() == 0 && cuts.back() == static_cast<int>(model.layers.size()) &&
                     std::is_sorted(cuts.begin(), cuts.end());
  if (strategy.devices() == cluster.device_count() && whole &&
      std::adjacent_find(cuts.begin(), cuts.end()) != cuts.end()) {
    priced.runs = false;
    return priced;
  }
  // lay_out needs degrees that fill the cluster, so validate them first.
  strategy.device_of_rank = order;
  cost::validate(
      strategy,
      cluster.device_count(),
      static_cast<int>(model.layers.size()),
      model.global_batch_size);
  strategy.device_of_rank = cost::lay_out(strategy, strategy.placement, order);
  priced.microbatches = strategy.microbatches(model.global_batch_size);
  priced.cost = cost::price(model, cluster, strategy, constants);
  return priced;
}

} // namespace

double PricedRow::seconds() const {
  return runs && cost.fits() ? cost.seconds : std::numeric_limits<double>::infinity();
}

std::string PricedTable::cell(const PricedRow& row, const std::string& name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? ""
                              : plain(row.cells[static_cast<std::size_t>(found - names.begin())]);
}

PricedTable price_rows(
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
  const Row header = cells_of(line);
  const Table table(origin, header);
  PricedTable priced;
  for (const std::string& cell : header) {
    priced.names.push_back(plain(cell));
  }
  std::map<int, cost::Cluster> parts; // of the cluster, by nodes
  for (int number = 2; next_line(); ++number) {
    if (plain(line).empty()) {
      continue;
    }
    const Row row = cells_of(line);
    try {
      if (row.size() != table.size()) {
        throw ConfigError(str("found ", row.size(), " cells; the first line names ", table.size()));
      }
      const int nodes = table.number_or(row, "nodes", static_cast<int>(cluster.nodes.size()));
      const auto part = parts.count(nodes) != 0
                            ? parts.find(nodes)
                            : parts.emplace(nodes, cluster.first_nodes(nodes)).first;
      priced.rows.push_back(price_row(table, row, model, part->second, constants));
    } catch (const ConfigError& error) {
      throw ConfigError(str(origin, ": line ", number, ": ", error.what()));
    }
  }
  return priced;
}

std::string price_table(
    const std::string& csv,
    const std::string& origin,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants) {
  const PricedTable priced = price_rows(csv, origin, model, cluster, constants);
  std::istringstream in(csv);
  std::string line;
  std::getline(in, line);
  std::erase(line, '\r');
  Row header = cells_of(line);
  const auto column = [&](const char* name) {
    const auto found = std::find(priced.names.begin(), priced.names.end(), name);
    if (found != priced.names.end()) {
      return static_cast<std::size_t>(found - priced.names.begin());
    }
    header.emplace_back(name);
    return header.size() - 1;
  };
  const std::size_t predicted = column("predicted_s");
  const std::size_t memory = column("memory_gib");
  std::string out = joined(header);
  for (const PricedRow& one : priced.rows) {
    Row row = one.cells;
    row.resize(header.size());
    row[predicted] = std::isinf(one.seconds()) ? "inf" : formatted(one.seconds(), "%.6f");
    row[memory] =
        one.runs ? formatted(one.cost.needed_bytes() / (1 << 30), "%.3f") : std::string("inf");
    out += joined(row);
  }
  return out;
}

} // namespace tessera::planner
