#include "tessera/diagnostics/activity.h"

#include <array>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/diagnostics/activity_board.h"

namespace tessera::diagnostics::activity {

namespace {

using State = ActivityPage::State;

thread_local bool is_script = false; // this thread

bool same_text(const std::array<char, 48>& a, const std::array<char, 48>& b) {
  return std::strncmp(a.data(), b.data(), a.size()) == 0;
}

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
  is_script = true;
  if (ActivityPage* page = ActivityBoard::own_page()) {
    page->step = steps_done;
    copy_text(page->module, doing);
    page->state = State::kScript;
  }
}

Operation::Operation(std::string_view kind, const std::string& group) noexcept {
  ActivityPage* page = ActivityBoard::own_page();
  if (page == nullptr) {
    return;
  }
  ShownOperation& place = is_script ? page->of_script : page->of_others;
  std::uint32_t free = 0;
  if (place.valid.compare_exchange_strong(free, 2)) {
    copy_text(place.kind, kind);
    copy_text(place.group, group);
    place.awaited.store(-1);
    place.number.fetch_add(1);
    place.valid.store(1, std::memory_order_release);
    shown_ = &place;
  }
}

Operation::~Operation() {
  if (shown_ != nullptr && ActivityBoard::own_page() != nullptr) {
    shown_->awaited.store(-1);
    shown_->valid.store(0, std::memory_order_release);
  }
}

void awaits(int rank) noexcept {
  ActivityPage* page = ActivityBoard::own_page();
  if (is_script && page != nullptr && page->of_script.valid.load() == 1) {
    page->of_script.awaited.store(rank);
  }
}

std::optional<OpposedWait> opposed_wait(int rank) {
  const ActivityBoard* board = ActivityBoard::published();
  const auto* neighbour = board == nullptr ? nullptr : board->find(rank);
  if (neighbour == nullptr || !is_script) {
    return std::nullopt;
  }
  const ShownOperation& own = board->page().of_script;
  const ShownOperation& theirs = neighbour->page().of_script;
  OpposedWait found;
  found.number = theirs.number.load();
  const bool both = own.valid.load(std::memory_order_acquire) == 1 &&
                    theirs.valid.load(std::memory_order_acquire) == 1;
  if (!both || theirs.awaited.load() != board->rank() || same_text(own.group, theirs.group) ||
      board->page().state != State::kScript || neighbour->page().state != State::kScript) {
    return std::nullopt;
  }
  Line line;
  line.add(theirs.kind).add(" of group '").add(theirs.group).add("'");
  found.text = line.text();
  return found.number == theirs.number.load() ? std::optional(found) : std::nullopt;
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
