#include "tessera/operations/units.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::operations {

DisjointSets::DisjointSets(int count) : parent_(count) {
  std::iota(parent_.begin(), parent_.end(), 0);
}

int DisjointSets::find(int element) {
  while (parent_[element] != element) {
    parent_[element] = parent_[parent_[element]];
    element = parent_[element];
  }
  return element;
}

void DisjointSets::join(int a, int b) {
  a = find(a);
  b = find(b);
  parent_[std::max(a, b)] = std::min(a, b);
}

std::vector<int> DisjointSets::numbered() {
  std::vector<int> number(parent_.size(), -1);
  int count = 0;
  for (int i = 0; i < static_cast<int>(parent_.size()); ++i) {
    const int first = find(i);
    number[i] = first == i ? count++ : number[first];
  }
  return number;
}

namespace {

using Lists = std::vector<std::vector<int>>;

void join_all(DisjointSets& sets, const std::vector<int>& members) {
  for (const int member : members) {
    sets.join(members.front(), member);
  }
}

// Visits everything that can be reached from `start` and has not been visited; `leave` is called
// for each vertex when all behind it has been.
template <typename Leave>
void depth_first(const Lists& next, int start, std::vector<bool>& seen, Leave&& leave) {
  if (seen[start]) {
    return;
  }
  seen[start] = true;
  std::vector<std::pair<int, std::size_t>> path{{start, 0}};
  while (!path.empty()) {
    auto& [vertex, position] = path.back();
    if (position == next[vertex].size()) {
      leave(vertex);
      path.pop_back();
      continue;
    }
    const int to = next[vertex][position++];
    if (!seen[to]) {
      seen[to] = true;
      path.emplace_back(to, 0);
    }
  }
}

// Vertices on a common circle become one (Kosaraju).
void join_circles(DisjointSets& sets, const Lists& next, const Lists& before) {
  const auto count = static_cast<int>(next.size());
  std::vector<int> order;
  std::vector<bool> seen(count, false);
  for (int i = 0; i < count; ++i) {
    depth_first(next, i, seen, [&](int vertex) { order.push_back(vertex); });
  }
  seen.assign(count, false);
  for (auto start = order.rbegin(); start != order.rend(); ++start) {
    depth_first(before, *start, seen, [&](int vertex) { sets.join(*start, vertex); });
  }
}

void sort_once(std::vector<int>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

} // namespace

Units make_units(const Graph& graph) {
  const auto count = static_cast<int>(graph.operations.size());
  DisjointSets sets(count);
  for (const std::vector<int>& list : graph.inseparable) {
    join_all(sets, list);
  }
  Lists next(count);
  Lists before(count);
  for (int i = 0; i < count; ++i) {
    for (const int producer : predecessors(graph, i)) {
      const int from = sets.find(producer);
      const int to = sets.find(i);
      next[from].push_back(to);
      before[to].push_back(from);
    }
  }
  join_circles(sets, next, before);
  Units units;
  units.unit_of_operation = sets.numbered();
  for (int i = 0; i < count; ++i) {
    const auto unit = static_cast<std::size_t>(units.unit_of_operation[i]);
    units.operations.resize(std::max(units.operations.size(), unit + 1));
    units.operations[unit].push_back(i);
  }
  units.before.resize(units.operations.size());
  for (int i = 0; i < count; ++i) {
    for (const int producer : predecessors(graph, i)) {
      if (units.unit_of_operation[producer] != units.unit_of_operation[i]) {
        units.before[units.unit_of_operation[i]].push_back(units.unit_of_operation[producer]);
      }
    }
  }
  for (std::vector<int>& list : units.before) {
    sort_once(list);
  }
  return units;
}

namespace {

// Everything that keeps operations in one part; `asked_by` is what they have in common.
std::vector<Together> reasons(const Graph& graph, const Units& units) {
  std::vector<Together> list;
  for (const std::vector<int>& unit : units.operations) {
    list.push_back({unit, "run in one go, since something is changed in place"});
  }
  for (const Together& together : graph.together) {
    list.push_back({together.operations, "are in " + together.asked_by});
  }
  std::map<std::string, std::vector<int>> of_module;
  std::map<std::string, std::vector<int>> of_layer;
  std::map<int, std::vector<int>> of_variable;
  for (int i = 0; i < static_cast<int>(graph.operations.size()); ++i) {
    const Operation& operation = graph.operations[i];
    for (const int variable : operation.variables) {
      of_variable[variable].push_back(i);
      of_module[graph.variables[variable].module].push_back(i);
    }
    if (!operation.layer.empty()) {
      of_layer[operation.layer].push_back(i);
    }
  }
  for (auto& [variable, operations] : of_variable) {
    list.push_back({std::move(operations), "use '" + graph.variables[variable].name + "'"});
  }
  for (auto& [module, operations] : of_module) {
    list.push_back({std::move(operations), "use parameters or buffers of module '" + module + "'"});
  }
  for (auto& [layer, operations] : of_layer) {
    list.push_back({std::move(operations), "belong to layer '" + layer + "'"});
  }
  return list;
}

} // namespace

std::vector<int> make_groups(const Graph& graph, const Units& units) {
  DisjointSets sets(static_cast<int>(graph.operations.size()));
  for (const Together& together : reasons(graph, units)) {
    join_all(sets, together.operations);
  }
  return sets.numbered();
}

std::string why_together(const Graph& graph, const Units& units, int a, int b) {
  const std::vector<Together> list = reasons(graph, units);
  std::vector<std::vector<int>> reasons_of(graph.operations.size());
  for (std::size_t r = 0; r < list.size(); ++r) {
    for (const int operation : list[r].operations) {
      reasons_of[operation].push_back(static_cast<int>(r));
    }
  }
  // The shortest way from b back to a, over operations that have a reason in common.
  std::vector<int> reason_of(graph.operations.size(), -1);
  std::vector<int> next_of(graph.operations.size(), -1);
  std::vector<int> open{b};
  next_of[b] = b;
  for (std::size_t k = 0; k < open.size() && next_of[a] < 0; ++k) {
    for (const int reason : reasons_of[open[k]]) {
      for (const int operation : list[reason].operations) {
        if (next_of[operation] < 0) {
          next_of[operation] = open[k];
          reason_of[operation] = reason;
          open.push_back(operation);
        }
      }
    }
  }
  std::string text;
  for (int operation = a; operation != b && next_of[operation] >= 0;
       operation = next_of[operation]) {
    text +=
        str(text.empty() ? "" : "; ",
            name_of_operation(graph, operation),
            " and ",
            name_of_operation(graph, next_of[operation]),
            " ",
            list[reason_of[operation]].asked_by);
  }
  return text;
}

} // namespace tessera::operations
