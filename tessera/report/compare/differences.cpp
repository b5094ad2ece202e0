#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/text.h"
#include "tessera/report/compare/comparison.h"

namespace tessera::report {

namespace {

/// Adds the values of `json` by their paths, in the order of the file. Lists are values.
void flatten(
    const OrderedJson& json,
    const std::string& path,
    std::vector<std::pair<std::string, OrderedJson>>& out) {
  if (!json.is_object() || json.empty()) {
    out.emplace_back(path, json);
    return;
  }
  for (const auto& item : json.items()) {
    flatten(item.value(), join_path(path, item.key()), out);
  }
}

using FlatConfiguration = std::vector<std::pair<std::string, OrderedJson>>;

const OrderedJson* find(const FlatConfiguration& configuration, const std::string& key) {
  const auto found = std::find_if(
      configuration.begin(), configuration.end(), [&key](const auto& e) { return e.first == key; });
  return found == configuration.end() ? nullptr : &found->second;
}

bool all_equal(const std::vector<std::string>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

std::string hosts_of(const RunFacts& run) {
  const std::set<std::string> hosts(run.hosts.begin(), run.hosts.end());
  return join({hosts.begin(), hosts.end()}, ", ");
}

std::vector<ComparedRow> different_facts(const std::vector<ComparedRun>& runs) {
  std::vector<ComparedRow> rows;
  const auto add = [&](const char* name, auto value_of) {
    ComparedRow row{name, {}};
    for (const ComparedRun& run : runs) {
      const std::string value = str(value_of(run.log.run));
      row.values.push_back(value.empty() ? "-" : value);
    }
    if (!all_equal(row.values)) {
      rows.push_back(std::move(row));
    }
  };
  add("model", [](const RunFacts& run) { return run.model; });
  add("parameters", [](const RunFacts& run) { return run.parameters; });
  add("precision", [](const RunFacts& run) { return run.precision; });
  add("data", [](const RunFacts& run) { return run.data; });
  add("steps of the job", [](const RunFacts& run) { return run.steps; });
  add("tokens of a step", [](const RunFacts& run) { return run.tokens_per_step; });
  add("ranks", [](const RunFacts& run) { return run.world_size; });
  add("pipeline-parallel degree", [](const RunFacts& r) { return r.pipeline_parallel_degree; });
  add("tensor-parallel degree", [](const RunFacts& run) { return run.tensor_parallel_degree; });
  add("reduced data-parallel degree", [](const RunFacts& r) { return r.data_parallel_degree; });
  add("microbatches", [](const RunFacts& run) { return run.microbatches; });
  add("schedule", [](const RunFacts& run) { return run.schedule; });
  add("hosts", hosts_of);
  add("program", [](const RunFacts& run) { return run.program; });
  return rows;
}

std::vector<ComparedRow> different_keys(const std::vector<ComparedRun>& runs) {
  std::vector<std::optional<FlatConfiguration>> configurations;
  std::vector<std::string> keys; // of all runs, in the order in which they appear
  std::set<std::string> known;
  for (const ComparedRun& run : runs) {
    auto& flat = configurations.emplace_back();
    if (run.log.run.config_json.empty()) {
      continue;
    }
    flat.emplace();
    flatten(parse_json(run.log.run.config_json, run.name + ": configuration"), "", *flat);
    for (const auto& [key, value] : *flat) {
      if (known.insert(key).second) {
        keys.push_back(key);
      }
    }
  }
  std::vector<ComparedRow> rows;
  for (const std::string& key : keys) {
    ComparedRow row{key, {}};
    std::vector<OrderedJson> found; // of the runs with a configuration; discarded: not named
    for (const auto& configuration : configurations) {
      const OrderedJson* value = configuration ? find(*configuration, key) : nullptr;
      row.values.push_back(!configuration ? "unknown" : value != nullptr ? one_line(*value) : "-");
      if (configuration) {
        found.push_back(value != nullptr ? *value : OrderedJson(OrderedJson::value_t::discarded));
      }
    }
    // Compared as values, because 1 and 1.0 are one number.
    const bool differ = std::any_of(found.begin(), found.end(), [&](const OrderedJson& value) {
      return value.is_discarded() != found.front().is_discarded() ||
             (!value.is_discarded() && value != found.front());
    });
    if (differ) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

} // namespace

Differences differences(const Comparison& comparison) {
  return {different_facts(comparison.runs), different_keys(comparison.runs)};
}

} // namespace tessera::report
