#include "tessera/offload/task_order.h"

#include <algorithm>
#include <utility>

namespace tessera::offload {

void TaskOrder::step_begins(std::uint64_t kind) {
  kind_ = kind;
  running_.clear();
  const auto found = seen_.find(kind);
  expected_ = found == seen_.end() ? std::vector<Task>() : found->second;
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
  std::vector<int> microbatches;
  for (std::size_t i = 0; i < expected_.size() && i < static_cast<std::size_t>(horizon); ++i) {
    const Task& task = expected_[i];
    if (task.backward && std::find(microbatches.begin(), microbatches.end(), task.microbatch) ==
                             microbatches.end()) {
      microbatches.push_back(task.microbatch);
    }
  }
  return microbatches;
}

} // namespace tessera::offload
