#include "tessera/operations/units.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

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

std::vector<int> make_groups(const Graph& graph, const Units& units) {
  DisjointSets sets(static_cast<int>(graph.operations.size()));
  for (const auto* lists : {&units.operations, &graph.together}) {
    for (const std::vector<int>& list : *lists) {
      join_all(sets, list);
    }
  }
  std::map<std::string, int> first_of_module;
  std::map<std::string, int> first_of_layer;
  std::map<int, int> first_of_variable;
  for (int i = 0; i < static_cast<int>(graph.operations.size()); ++i) {
    const Operation& operation = graph.operations[i];
    for (const int variable : operation.variables) {
      sets.join(i, first_of_variable.emplace(variable, i).first->second);
      sets.join(i, first_of_module.emplace(graph.variables[variable].module, i).first->second);
    }
    if (!operation.layer.empty()) {
      sets.join(i, first_of_layer.emplace(operation.layer, i).first->second);
    }
  }
  return sets.numbered();
}

} // namespace tessera::operations
