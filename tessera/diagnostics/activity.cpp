#include "tessera/diagnostics/activity.h"

#include "tessera/base/error.h"
#include "tessera/diagnostics/activity_board.h"

namespace tessera::diagnostics::activity {

namespace {

using State = ActivityPage::State;

std::string text_of(const ActivityPage& page) {
  Line line;
  describe(page, line);
  return std::string(line.text());
}

} // namespace

void leave() noexcept {
  if (ActivityPage* page = ActivityBoard::own_page()) {
    page->left.store(1);
  }
}

void end_program() noexcept {
  if (ActivityPage* page = ActivityBoard::own_page()) {
    page->left.store(ActivityPage::kProgramEnded);
  }
}

void runs(std::int64_t step, const std::string& module, int microbatch, bool backward) noexcept {
  if (ActivityPage* page = ActivityBoard::own_page()) {
    page->step = step;
    page->microbatch = microbatch;
    page->backward = backward ? 1 : 0;
    copy_text(page->module, module);
    page->state = State::kRuns;
  }
}

void turns_backward() noexcept {
  if (ActivityPage* page = ActivityBoard::own_page()) {
    page->backward = 1;
  }
}

void waits(
    std::int64_t step,
    const std::string& module,
    int microbatch,
    bool backward,
    const std::string& target,
    int rank) noexcept {
  if (ActivityPage* page = ActivityBoard::own_page()) {
    runs(step, module, microbatch, backward);
    copy_text(page->target, target);
    page->target_rank = rank;
    page->state = State::kWaits;
  }
}

void waits_for_requests(std::int64_t step) noexcept {
  if (ActivityPage* page = ActivityBoard::own_page()) {
    page->step = step;
    page->state = State::kServes;
  }
}

void script(std::int64_t steps_done, const std::string& doing) noexcept {
  if (ActivityPage* page = ActivityBoard::own_page()) {
    page->step = steps_done;
    copy_text(page->module, doing);
    page->state = State::kScript;
  }
}

Operation::Operation(std::string_view kind, const std::string& group) noexcept {
  ActivityPage* page = ActivityBoard::own_page();
  std::uint32_t free = 0;
  if (page != nullptr && page->in_operation.compare_exchange_strong(free, 2)) {
    copy_text(page->kind, kind);
    copy_text(page->group, group);
    page->in_operation.store(1, std::memory_order_release);
    shown_ = true;
  }
}

Operation::~Operation() {
  ActivityPage* page = ActivityBoard::own_page();
  if (shown_ && page != nullptr) {
    page->in_operation.store(0, std::memory_order_release);
  }
}

bool has_ended_program(int rank) noexcept {
  const ActivityBoard* board = ActivityBoard::published();
  const auto* neighbour = board == nullptr ? nullptr : board->find(rank);
  return neighbour != nullptr && neighbour->page().left.load() == ActivityPage::kProgramEnded;
}

std::string of_self() {
  const ActivityPage* page = ActivityBoard::own_page();
  return page == nullptr ? std::string() : text_of(*page);
}

std::string of_rank(int rank) {
  const ActivityBoard* board = ActivityBoard::published();
  const auto* neighbour = board == nullptr ? nullptr : board->find(rank);
  return neighbour == nullptr ? std::string() : text_of(neighbour->page());
}

std::string of_node() {
  const ActivityBoard* board = ActivityBoard::published();
  if (board == nullptr || board->neighbours().empty()) {
    return {};
  }
  std::string text = "; the other ranks of this node:";
  for (const auto& neighbour : board->neighbours()) {
    text +=
        str(text.back() == ':' ? " rank " : "; rank ",
            neighbour.rank,
            neighbour.page().left == ActivityPage::kProgramEnded ? " has ended its program in "
            : neighbour.process->ended()                         ? " has died in "
                                                                 : ": ",
            text_of(neighbour.page()));
  }
  return text;
}

} // namespace tessera::diagnostics::activity
