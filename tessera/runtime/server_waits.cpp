// What a rank that waits too long says, and asks of the others of its pipeline.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/runtime/server.h"

namespace tessera::runtime {

namespace {

// How long a rank that gives up waits for others to say what they wait for.
constexpr auto kAnswerWithin = std::chrono::seconds(1);
constexpr auto kLookEvery = std::chrono::milliseconds(50);

} // namespace

void Server::check_timeout() {
  const auto started = idle_since_;
  const auto idle = std::chrono::steady_clock::now() - started;
  if (idle <= context_.timeout) {
    return;
  }
  const std::string others = ask_others();
  if (idle_since_ != started) {
    return; // what was waited for came after all
  }
  diagnostics::activity::leave(); // this error tells of this rank's end
  throw CommError(
      str("rank ",
          context_.rank,
          " heard nothing for ",
          std::chrono::duration<double>(idle).count(),
          " s in step ",
          work_->step,
          "; ",
          state(),
          others,
          diagnostics::activity::of_node()));
}

// The rank that is asked for something may itself wait for the one at fault.
std::string Server::ask_others() {
  answers_.clear();
  Fields probe;
  probe.kind = Kind::kProbe;
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
                                           " gives no answer: it is stopped, or busy with its own "
                                           "work for longer than timeout_seconds")
                                     : str("; rank ", rank, " answers: ", answer->second);
  }
  return text;
}

std::string Server::state() const {
  std::string text;
  for (const auto& [worker, task] : suspended_) {
    if (task->response) {
      continue;
    }
    text += text.empty() ? "it waits for" : ", and for";
    text += task->awaits == 0 ? std::string(" the schedule")
                              : str(" module '",
                                    context_.modules->name_of(task->awaits_module),
                                    "' on rank ",
                                    task->awaits_rank);
    text += str(" (for ", task_text(task->request, *context_.modules), ")");
  }
  if (text.empty() && static_ != nullptr) {
    text = static_state();
  }
  if (text.empty()) {
    text =
        str("it has no task and waits for requests; rank ",
            context_.pp_ranks.front(),
            " runs the step");
  }
  if (follows()) {
    text += ordered_ ? ". It follows the order of rank " : ". Rank ";
    text += std::to_string(context_.order->leader_rank());
    text += ordered_ ? ", whose next task has not come here"
                     : ", whose order it follows, announced nothing more";
  }
  return text;
}

} // namespace tessera::runtime
