#include "tessera/offload/task_order.h"

#include <algorithm>
#include <utility>

namespace tessera::offload {

namespace {

using Task = TaskOrder::Task;

/// Of the first `horizon` tasks from `begin` on, each microbatch once.
std::vector<int> backwards_of(const std::vector<Task>& tasks, std::size_t begin, int horizon) {
  const std::size_t end = std::min(tasks.size(), begin + static_cast<std::size_t>(horizon));
  std::vector<int> microbatches;
  for (std::size_t i = begin; i < end; ++i) {
    const int microbatch = tasks[i].microbatch;
    if (tasks[i].backward &&
        std::find(microbatches.begin(), microbatches.end(), microbatch) == microbatches.end()) {
      microbatches.push_back(microbatch);
    }
  }
  return microbatches;
}

} // namespace

void TaskOrder::step_begins(std::uint64_t kind) {
  kind_ = kind;
  running_.clear();
  const auto found = seen_.find(kind);
  before_ = found == seen_.end() ? std::vector<Task>() : found->second;
  expected_ = before_;
}

void TaskOrder::step_ended() {
  seen_[kind_] = std::exchange(running_, {});
  expected_.clear();
}

void TaskOrder::task_begins(Task task) {
  running_.push_back(task);
  const auto found = std::find(expected_.begin(), expected_.end(), task);
  if (found != expected_.end()) {
    expected_.erase(found);
  }
}

void TaskOrder::expect(std::vector<Task> tasks) {
  expected_ = std::move(tasks);
}

std::vector<int> TaskOrder::backwards_within(int horizon) const {
  return backwards_of(expected_, 0, horizon);
}

std::vector<int> TaskOrder::backwards_behind(int microbatch, int horizon) const {
  const Task task{microbatch, true};
  auto left = std::count(running_.begin(), running_.end(), task);
  std::size_t behind = before_.size();
  for (std::size_t i = 0; i < before_.size() && left > 0; ++i) {
    if (before_[i] == task) {
      behind = i + 1;
      --left;
    }
  }
  return backwards_of(before_, behind, horizon);
}

} // namespace tessera::offload
