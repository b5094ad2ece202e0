#include "tessera/comm/shared_memory/window.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include <unistd.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/process_group.h"
#include "tessera/comm/recoverable_engine.h"

namespace tessera::comm::shm {

namespace {

constexpr std::size_t kWindowPage = 4096;
// As in the engine: a peer that comes soon costs no sleep.
constexpr std::chrono::microseconds kLook{10};

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kWindowPage - 1) / kWindowPage * kWindowPage;
}

} // namespace

struct Window::Counters {
  std::array<Counter, kCounters> of;
  Failures failures;
};

std::shared_ptr<Window>
Window::make(ProcessGroup& group, const GroupInfo& info, std::size_t bytes_of_rank) {
  const auto ranks = static_cast<std::size_t>(info.size());
  const std::size_t total = whole_pages(sizeof(Header)) +
                            ranks * (whole_pages(sizeof(Counters)) + whole_pages(bytes_of_rank));
  std::shared_ptr<const Segment> segment;
  std::string error;
  at::Tensor where = at::zeros({4}, at::kLong);
  if (info.rank == 0) {
    try {
      segment = std::make_shared<const Segment>(Segment::create(total));
      const std::uint64_t nonce = draw_nonce();
      reinterpret_cast<Header*>(segment->data())->nonce.store(nonce);
      auto* values = where.data_ptr<std::int64_t>();
      values[0] = 1;
      values[1] = ::getpid();
      values[2] = segment->fd();
      values[3] = static_cast<std::int64_t>(nonce);
    } catch (const CommError& e) {
      error = e.what();
    }
  }
  group.broadcast(where, 0);
  const auto* values = where.data_ptr<std::int64_t>();
  if (values[0] == 0 && error.empty()) {
    error = str("rank ", info.ranks.front(), " could not make the memory");
  }
  if (error.empty() && info.rank != 0) {
    try {
      segment = std::make_shared<const Segment>(
          Segment::open(static_cast<int>(values[1]), static_cast<int>(values[2]), total));
      const auto nonce = reinterpret_cast<Header*>(segment->data())->nonce.load();
      if (nonce != static_cast<std::uint64_t>(values[3])) {
        error = "other memory was found there";
      }
    } catch (const CommError& e) {
      error = e.what();
    }
  }
  // Also what keeps the maker's descriptor open until all have mapped it.
  at::Tensor failed = at::full({1}, error.empty() ? 0 : 1, at::kLong);
  group.all_reduce(failed, ReduceOp::kMax);
  if (failed.item<std::int64_t>() != 0) {
    throw CommError(
        str("shared memory of ",
            total,
            " bytes for ",
            info.text(),
            ": ",
            error.empty() ? "another rank could not map it" : error,
            "; set same_node to 'mpi' when ranks cannot see each other's "
            "processes"));
  }
  return std::shared_ptr<Window>(new Window(info, segment, whole_pages(bytes_of_rank)));
}

Window::Window(GroupInfo info, std::shared_ptr<const Segment> segment, std::size_t bytes_of_rank)
    : info_(std::move(info)),
      segment_(std::move(segment)),
      bytes_of_rank_(bytes_of_rank),
      header_(reinterpret_cast<Header*>(segment_->data())) {}

Window::~Window() {
  if (std::uncaught_exceptions() > 0) {
    fail("it ended with an error");
  }
}

Window::Counters& Window::counters(int rank) const {
  return *reinterpret_cast<Counters*>(
      segment_->data() + whole_pages(sizeof(Header)) +
      static_cast<std::size_t>(rank) * whole_pages(sizeof(Counters)));
}

std::byte* Window::region(int rank) const {
  return segment_->data() + whole_pages(sizeof(Header)) +
         static_cast<std::size_t>(info_.size()) * whole_pages(sizeof(Counters)) +
         static_cast<std::size_t>(rank) * bytes_of_rank_;
}

void Window::post(int counter, std::uint32_t value) {
  Counter& mine = counters(info_.rank).of[static_cast<std::size_t>(counter)];
  // Sequentially consistent on both sides: either the sleeper sees the value
  // or we see the sleeper.
  mine.value.store(value);
  if (mine.sleepers.load() != 0) {
    wake_all(mine.value);
  }
}

void Window::wait(int rank, int counter, std::uint32_t target, const char* what) {
  using Clock = std::chrono::steady_clock;
  Counter& theirs = counters(rank).of[static_cast<std::size_t>(counter)];
  const auto come = [&] { return reached(theirs.value.load(std::memory_order_acquire), target); };
  if (come()) {
    return;
  }
  const auto start = Clock::now();
  do {
    // The peer may be waiting for this very core.
    std::this_thread::yield();
    if (come()) {
      return;
    }
  } while (Clock::now() - start < kLook);
  const auto deadline = start + info_.timeout;
  while (true) {
    theirs.sleepers.fetch_add(1);
    const std::uint32_t seen = theirs.value.load();
    if (!reached(seen, target)) {
      wait_while_equal(theirs.value, seen, kSleepPiece);
    }
    theirs.sleepers.fetch_sub(1);
    if (come()) {
      return;
    }
    check_running(what);
    if (header_->broken.load(std::memory_order_acquire) != 0) {
      leave(info_.rank); // whose it is stands there already
    }
    const std::uint32_t told = counters(rank).failures.count.load(std::memory_order_acquire);
    if (come()) { // perhaps posted before its failure
      return;
    }
    if (told > failures_) {
      leave(rank);
    }
    if (Clock::now() >= deadline) {
      const std::string reason =
          str(what,
              " of ",
              info_.text(),
              ": rank ",
              info_.ranks[static_cast<std::size_t>(info_.rank)],
              " waited ",
              info_.timeout.count(),
              " ms for rank ",
              info_.ranks[static_cast<std::size_t>(rank)]);
      fail(reason);
      throw CommError(reason);
    }
  }
}

void Window::check_running(const char* what) const {
  const std::uint32_t failed = header_->failed.load(std::memory_order_acquire);
  if (failed != 0) {
    throw CommError(
        str(what,
            " of ",
            info_.text(),
            ": rank ",
            info_.ranks[failed - 1],
            " has failed: ",
            header_->reason.data()));
  }
}

void Window::fail(const std::string& reason) {
  // The first to fail tells the others why.
  std::uint32_t nobody = 0;
  const auto me = static_cast<std::uint32_t>(info_.rank) + 1;
  if (header_->failing.compare_exchange_strong(nobody, me)) {
    const std::size_t length = std::min(reason.size(), header_->reason.size() - 1);
    std::memcpy(header_->reason.data(), reason.data(), length);
    header_->reason[length] = '\0';
    header_->failed.store(me, std::memory_order_release);
  }
}

void Window::abandon(const std::string& why) {
  ++failures_;
  counters(info_.rank).failures.tell(0, why);
}

void Window::differs(int rank, std::uint32_t its_failures) {
  leave(its_failures > failures_ ? rank : info_.rank);
}

void Window::recover() {
  failures_ = 0;
  counters(info_.rank).failures.count.store(0);
  header_->broken.store(0);
}

void Window::leave(int origin) const {
  std::uint32_t nobody = 0;
  const auto first = static_cast<std::uint32_t>(origin) + 1;
  if (!header_->broken.compare_exchange_strong(nobody, first)) {
    origin = static_cast<int>(nobody) - 1;
  }
  throw PeerFailed(counters(origin).failures.why.data());
}

} // namespace tessera::comm::shm
