#include "tessera/runtime/stall_report.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/runtime/error_text.h"

namespace tessera::runtime {

namespace {

// The time that a rank which aborts waits for others to report what they wait for.
constexpr auto kAnswerWithin = std::chrono::seconds(1);
constexpr auto kLookEvery = std::chrono::milliseconds(50);

} // namespace

std::string waiting_text(const StepTasks& tasks, const ModuleDirectory& modules) {
  std::string text;
  for (const auto& [worker, task] : tasks.suspended) {
    if (task->response) {
      continue;
    }
    text += text.empty() ? "it waits for" : ", and for";
    text += task->awaits == 0 ? std::string(" the schedule")
                              : str(" module '",
                                    modules.name_of(task->awaits_module),
                                    "' on rank ",
                                    task->awaits_rank);
    text += str(" (for ", task_text(task->request, modules), ")");
  }
  return text;
}

void publish_wait(const StepTasks& tasks, std::int64_t step, const ModuleDirectory& modules) {
  if (tasks.suspended.empty()) {
    diagnostics::activity::waits_for_requests(step);
    return;
  }
  const auto name = [&](int module) {
    return module < 0 ? std::string() : modules.name_of(module);
  };
  const Task& task = *tasks.suspended.front().task;
  const bool for_call = task.awaits != 0;
  diagnostics::activity::waits(
      step,
      name(task.request.module),
      task.request.microbatch,
      task.request.phase == Phase::kBackward,
      for_call ? name(task.awaits_module) : std::string(),
      for_call ? task.awaits_rank : -1);
}

std::string StallInquiry::ask_others(const std::function<void(transport::Parcel)>& take) {
  answers_.clear();
  Fields probe;
  probe.kind = ServerMessage::kProbe;
  for (const int rank : context_.pp_ranks) {
    if (rank != context_.rank) {
      context_.transport->send(rank, to_header(probe), c10::IValue());
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + kAnswerWithin;
  while (answers_.size() + 1 < context_.pp_ranks.size() &&
         std::chrono::steady_clock::now() < deadline) {
    if (auto parcel = context_.transport->receive(kLookEvery)) {
      take(std::move(*parcel));
    }
  }
  std::string text;
  for (const int rank : context_.pp_ranks) {
    if (rank == context_.rank) {
      continue;
    }
    const auto answer = answers_.find(rank);
    text += answer == answers_.end() ? str("; rank ",
                                           rank,
                                           " gives no answer: it is stopped, has ended its "
                                           "program, or is busy with its own work for longer than "
                                           "timeout_seconds")
                                     : str("; rank ", rank, " answers: ", answer->second);
  }
  return text;
}

void StallInquiry::take_answer(const transport::Parcel& parcel) {
  answers_[parcel.source] = parcel.body.toStringRef();
}

void StallInquiry::answer(int rank, std::string state) const {
  Fields fields;
  fields.kind = ServerMessage::kState;
  context_.transport->send(rank, to_header(fields), c10::IValue(std::move(state)));
}

} // namespace tessera::runtime
