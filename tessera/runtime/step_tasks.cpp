#include "tessera/runtime/step_tasks.h"

#include <algorithm>

namespace tessera::runtime {

using State = schedule::Progress::State;

StepTasks::StepTasks(int microbatches) : roots(microbatches) {
  progress.states.assign(microbatches, State::kWaiting);
}

bool StepTasks::root_done() const {
  return std::all_of(progress.states.begin(), progress.states.end(), [](State state) {
    return state == State::kDone;
  });
}

const SuspendedTask* StepTasks::find_suspended(std::uint64_t id) const {
  const auto found = std::find_if(
      suspended.begin(), suspended.end(), [id](const auto& held) { return held.task->id == id; });
  return found == suspended.end() ? nullptr : &*found;
}

const SuspendedTask* StepTasks::interrupted() const {
  const SuspendedTask* lowest = nullptr;
  for (const SuspendedTask& held : suspended) {
    if (held.task->gave_way &&
        (lowest == nullptr || held.task->request.microbatch < lowest->task->request.microbatch)) {
      lowest = &held;
    }
  }
  return lowest;
}

void StepTasks::remove(const std::shared_ptr<Task>& task) {
  std::erase_if(suspended, [&](const SuspendedTask& held) { return held.task == task; });
  std::erase(ready, task);
}

} // namespace tessera::runtime
