#include "tessera/comm/activity.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include <poll.h>

#include "tessera/base/error.h"
#include "tessera/comm/shared_memory/segment.h"

namespace tessera::comm::activity {

namespace {

enum class State : std::int32_t { kScript, kRuns, kWaits, kServes };

template <std::size_t N>
void copy_text(std::array<char, N>& into, std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), N - 1);
  std::memcpy(into.data(), text.data(), length);
  into[length] = '\0';
}

// In shared memory, written by one rank. A reader may see a text half replaced
// by the next one: it is for people, after something went wrong.
struct Page {
  std::uint64_t nonce = 0;
  std::atomic<std::uint32_t> left{0};
  std::atomic<std::uint32_t> told{0}; // somebody has reported the death
  std::atomic<std::uint32_t> in_operation{0};
  /// Of the node's first rank: 1 once a rank reports a failure, 2 when it has.
  std::atomic<std::uint32_t> failure{0};
  State state = State::kScript;
  std::int32_t microbatch = -1;
  std::int32_t backward = 0;
  std::int32_t target_rank = -1;
  std::int64_t step = -1;
  std::array<char, 128> module{};
  std::array<char, 128> target{};
  std::array<char, 24> kind{};
  std::array<char, 48> group{};
};

// Built without allocation: a signal handler uses it too.
class Line {
 public:
  Line& add(std::string_view text) noexcept {
    const std::size_t length = std::min(text.size(), text_.size() - used_);
    std::memcpy(text_.data() + used_, text.data(), length);
    used_ += length;
    return *this;
  }
  template <std::size_t N>
  Line& add(const std::array<char, N>& text) noexcept {
    return add(std::string_view(text.data(), ::strnlen(text.data(), N)));
  }
  Line& add(std::int64_t number) noexcept {
    std::array<char, 24> digits{};
    std::size_t at = digits.size();
    std::uint64_t rest =
        number < 0 ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    do {
      digits[--at] = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest != 0);
    if (number < 0) {
      digits[--at] = '-';
    }
    return add(std::string_view(digits.data() + at, digits.size() - at));
  }
  std::string_view text() const noexcept {
    return {text_.data(), used_};
  }

 private:
  std::array<char, 768> text_{};
  std::size_t used_ = 0;
};

void describe(const Page& page, Line& line) noexcept {
  if (page.state == State::kScript) {
    line.add("the script, ");
    if (page.step < 1) {
      line.add("before the first step's end");
    } else {
      line.add("after ").add(page.step).add(" steps");
    }
    if (page.module[0] != '\0') {
      line.add(", ").add(page.module);
    }
  } else {
    line.add("step ").add(page.step);
  }
  if (page.state == State::kServes) {
    line.add(", waiting for requests");
  }
  if (page.state == State::kRuns || page.state == State::kWaits) {
    if (page.module[0] == '\0') {
      line.add(", the step function");
    } else {
      line.add(", module '").add(page.module).add("'");
    }
    line.add(", microbatch ").add(std::int64_t{page.microbatch});
    line.add(page.backward != 0 ? ", backward" : ", forward");
  }
  if (page.state == State::kWaits && page.target_rank < 0) {
    line.add(", waiting for the schedule");
  } else if (page.state == State::kWaits) {
    line.add(", waiting for module '").add(page.target);
    line.add("' on rank ").add(std::int64_t{page.target_rank});
  }
  if (page.in_operation.load(std::memory_order_acquire) != 0) {
    line.add("; in ").add(page.kind).add(" of group '").add(page.group);
    line.add("'");
  }
}

struct Neighbour {
  int rank = -1;
  int pid = 0;
  int watch = -1; // descriptor of the process, where the kernel gives one
  std::string host;
  shm::Segment memory;
  Page& page() const {
    return *reinterpret_cast<Page*>(memory.data());
  }
  bool ended() const noexcept {
    if (watch >= 0) {
      pollfd entry{watch, POLLIN, 0};
      return ::poll(&entry, 1, 0) == 1;
    }
    return ::kill(pid, 0) != 0 && errno == ESRCH;
  }
};

struct Board {
  int rank = -1;
  shm::Segment own;
  std::vector<Neighbour> neighbours;
  ~Board() {
    for (const Neighbour& neighbour : neighbours) {
      if (neighbour.watch >= 0) {
        ::close(neighbour.watch);
      }
    }
  }
};

// Never freed while a handler or a group's thread could look at it.
std::atomic<Board*> g_board{nullptr};

Page* own_page() noexcept {
  Board* board = g_board.load(std::memory_order_acquire);
  return board == nullptr ? nullptr : reinterpret_cast<Page*>(board->own.data());
}

// mpirun ends the others when one has died; this is their chance to say more
// than it knows.
extern "C" void tell_and_end(int number) {
  if (Page* page = own_page()) {
    page->left.store(1);
    for (const Neighbour& other : g_board.load()->neighbours) {
      Page& theirs = other.page();
      if (theirs.left.load() != 0 || !other.ended() || theirs.told.exchange(1) != 0) {
        continue;
      }
      Line line;
      line.add("tessera: rank ").add(std::int64_t{other.rank});
      line.add(" (process ").add(std::int64_t{other.pid}).add(" on ");
      line.add(other.host).add(") has died; it was in ");
      describe(theirs, line);
      line.add("\n");
      const std::string_view text = line.text();
      const auto written = ::write(STDERR_FILENO, text.data(), text.size());
      static_cast<void>(written);
    }
  }
  std::signal(number, SIG_DFL);
  ::raise(number);
}

void install_handler() {
  struct sigaction now {};
  if (::sigaction(SIGTERM, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
      now.sa_handler == SIG_DFL) {
    std::signal(SIGTERM, tell_and_end);
  }
}

void leave_at_exit() {
  leave();
}

const Neighbour* find(int rank) {
  const Board* board = g_board.load(std::memory_order_acquire);
  if (board == nullptr) {
    return nullptr;
  }
  for (const Neighbour& neighbour : board->neighbours) {
    if (neighbour.rank == rank) {
      return &neighbour;
    }
  }
  return nullptr;
}

/// On the page of the node's first rank, where all its ranks look.
std::atomic<std::uint32_t>* failure_of_node() noexcept {
  const Board* board = g_board.load(std::memory_order_acquire);
  if (board == nullptr) {
    return nullptr;
  }
  Page* page = reinterpret_cast<Page*>(board->own.data());
  int first = board->rank;
  for (const Neighbour& neighbour : board->neighbours) {
    if (neighbour.rank < first) {
      first = neighbour.rank;
      page = &neighbour.page();
    }
  }
  return &page->failure;
}

std::string text_of(const Page& page) {
  Line line;
  describe(page, line);
  return std::string(line.text());
}

} // namespace

void share(World& world, const ProcessGroup& everybody) {
  auto board = std::make_unique<Board>();
  board->rank = world.rank();
  board->own = shm::Segment::create(sizeof(Page));
  auto* page = new (board->own.data()) Page;
  page->nonce =
      reinterpret_cast<std::uintptr_t>(board.get()) ^ static_cast<std::uint64_t>(::getpid()) << 32;
  const std::vector<std::int64_t> mine = {
      ::getpid(), board->own.fd(), static_cast<std::int64_t>(page->nonce)};
  const auto all = all_gather_object(world, everybody, mine);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank() || world.hosts()[rank] != world.hosts()[world.rank()]) {
      continue;
    }
    const auto where = all[rank].toIntVector();
    Neighbour neighbour;
    neighbour.rank = rank;
    neighbour.pid = static_cast<int>(where.at(0));
    neighbour.host = world.hosts()[rank];
    try {
      neighbour.memory =
          shm::Segment::open(neighbour.pid, static_cast<int>(where.at(1)), sizeof(Page));
    } catch (const CommError&) {
      continue; // another host of the same name, or walls between processes
    }
    if (neighbour.page().nonce != static_cast<std::uint64_t>(where.at(2))) {
      continue;
    }
    neighbour.watch = static_cast<int>(::syscall(SYS_pidfd_open, neighbour.pid, 0));
    board->neighbours.push_back(std::move(neighbour));
  }
  // Nobody closes its page before all have mapped it.
  all_gather_object(world, everybody, mine);
  static const bool once = [] {
    install_handler();
    return std::atexit(leave_at_exit) == 0;
  }();
  static_cast<void>(once);
  delete g_board.exchange(board.release());
}

void leave() noexcept {
  if (Page* page = own_page()) {
    page->left.store(1);
  }
}

bool reports_failure(std::chrono::milliseconds patience) noexcept {
  using Clock = std::chrono::steady_clock;
  std::atomic<std::uint32_t>* failure = failure_of_node();
  const auto wait_for = [&](std::uint32_t state, std::chrono::milliseconds time) {
    const auto end = Clock::now() + time;
    while ((failure == nullptr || failure->load() < state) && Clock::now() < end) {
      ::poll(nullptr, 0, 2);
    }
  };
  wait_for(1, patience);
  std::uint32_t nobody = 0;
  if (failure == nullptr || failure->compare_exchange_strong(nobody, 1)) {
    return true;
  }
  wait_for(2, std::chrono::seconds(1));
  return false;
}

void failure_reported() noexcept {
  if (std::atomic<std::uint32_t>* failure = failure_of_node()) {
    failure->store(2);
  }
}

void runs(std::int64_t step, const std::string& module, int microbatch, bool backward) noexcept {
  if (Page* page = own_page()) {
    page->step = step;
    page->microbatch = microbatch;
    page->backward = backward ? 1 : 0;
    copy_text(page->module, module);
    page->state = State::kRuns;
  }
}

void turns_backward() noexcept {
  if (Page* page = own_page()) {
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
  if (Page* page = own_page()) {
    runs(step, module, microbatch, backward);
    copy_text(page->target, target);
    page->target_rank = rank;
    page->state = State::kWaits;
  }
}

void waits_for_requests(std::int64_t step) noexcept {
  if (Page* page = own_page()) {
    page->step = step;
    page->state = State::kServes;
  }
}

void script(std::int64_t steps_done, const std::string& doing) noexcept {
  if (Page* page = own_page()) {
    page->step = steps_done;
    copy_text(page->module, doing);
    page->state = State::kScript;
  }
}

Operation::Operation(std::string_view kind, const std::string& group) noexcept {
  Page* page = own_page();
  std::uint32_t free = 0;
  // 2: being written.
  if (page != nullptr && page->in_operation.compare_exchange_strong(free, 2)) {
    copy_text(page->kind, kind);
    copy_text(page->group, group);
    page->in_operation.store(1, std::memory_order_release);
    shown_ = true;
  }
}

Operation::~Operation() {
  Page* page = own_page();
  if (shown_ && page != nullptr) {
    page->in_operation.store(0, std::memory_order_release);
  }
}

std::string of_rank(int rank) {
  const Neighbour* neighbour = find(rank);
  return neighbour == nullptr ? std::string() : text_of(neighbour->page());
}

std::string of_node() {
  const Board* board = g_board.load(std::memory_order_acquire);
  if (board == nullptr || board->neighbours.empty()) {
    return {};
  }
  std::string text = "; the other ranks of this node:";
  for (const Neighbour& neighbour : board->neighbours) {
    text +=
        str(text.back() == ':' ? " rank " : "; rank ",
            neighbour.rank,
            neighbour.ended() ? " has died in " : ": ",
            text_of(neighbour.page()));
  }
  return text;
}

} // namespace tessera::comm::activity
