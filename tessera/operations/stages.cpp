#include "tessera/operations/stages.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::operations {

namespace {

/// The units that have run, and which could.
class Order {
 public:
  Order(const Units& units, std::vector<int> part_of_unit)
      : part_of_unit_(std::move(part_of_unit)), after_(units.before.size()) {
    for (std::size_t unit = 0; unit < units.before.size(); ++unit) {
      missing_.push_back(static_cast<int>(units.before[unit].size()));
      for (const int before : units.before[unit]) {
        after_[before].push_back(static_cast<int>(unit));
      }
      if (units.before[unit].empty()) {
        ready_.insert(static_cast<int>(unit));
      }
    }
  }

  bool done() const {
    return ready_.empty();
  }
  /// The parts that could run something, ascending.
  std::set<int> parts() const {
    std::set<int> parts;
    for (const int unit : ready_) {
      parts.insert(part_of_unit_[unit]);
    }
    return parts;
  }
  /// Runs all that this part can run now, low units first.
  std::vector<int> run(int part) {
    std::vector<int> ran;
    for (auto next = first_of(part); next != ready_.end(); next = first_of(part)) {
      const int unit = *next;
      ready_.erase(next);
      ran.push_back(unit);
      for (const int waiting : after_[unit]) {
        if (--missing_[waiting] == 0) {
          ready_.insert(waiting);
        }
      }
    }
    return ran;
  }

 private:
  std::set<int>::iterator first_of(int part) {
    return std::find_if(
        ready_.begin(), ready_.end(), [&](int unit) { return part_of_unit_[unit] == part; });
  }

  std::vector<int> part_of_unit_;
  std::vector<std::vector<int>> after_;
  std::vector<int> missing_; // units that have to run before
  std::set<int> ready_;
};

void find_tensors(const Graph& graph, std::vector<Stage>& stages) {
  std::vector<int> stage_of(graph.operations.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const int operation : stages[s].operations) {
      stage_of[operation] = static_cast<int>(s);
    }
  }
  std::vector<std::set<int>> takes(stages.size());
  std::vector<std::set<int>> gives(stages.size());
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    for (const int tensor : graph.operations[i].reads) {
      const int producer = graph.tensors[tensor].producer;
      if (producer < 0) {
        takes[stage_of[i]].insert(tensor);
      } else if (stage_of[producer] != stage_of[i]) {
        takes[stage_of[i]].insert(tensor);
        gives[stage_of[producer]].insert(tensor);
      }
    }
  }
  for (const int tensor : graph.results) {
    if (graph.tensors[tensor].producer >= 0) {
      gives[stage_of[graph.tensors[tensor].producer]].insert(tensor);
    }
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    stages[s].takes.assign(takes[s].begin(), takes[s].end());
    stages[s].gives.assign(gives[s].begin(), gives[s].end());
  }
}

} // namespace

std::vector<Stage>
make_stages(const Graph& graph, const Units& units, const std::vector<int>& part_of_operation) {
  std::vector<int> part_of_unit;
  for (const std::vector<int>& operations : units.operations) {
    part_of_unit.push_back(part_of_operation.at(operations.front()));
    for (const int operation : operations) {
      TESSERA_CHECK(
          part_of_operation[operation] == part_of_unit.back(),
          "operation ",
          operation,
          " is apart from its unit");
    }
  }
  Order order(units, part_of_unit);
  std::vector<Stage> stages;
  while (!order.done()) {
    Order best = order;
    int part = -1;
    std::vector<int> ran;
    for (const int candidate : order.parts()) {
      Order after = order;
      std::vector<int> runs = after.run(candidate);
      if (runs.size() > ran.size()) {
        part = candidate;
        ran = std::move(runs);
        best = std::move(after);
      }
    }
    order = std::move(best);
    Stage& stage = stages.emplace_back();
    stage.part = part;
    for (const int unit : ran) {
      stage.operations.insert(
          stage.operations.end(), units.operations[unit].begin(), units.operations[unit].end());
    }
  }
  find_tensors(graph, stages);
  return stages;
}

} // namespace tessera::operations
