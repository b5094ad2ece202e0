#include "tessera/comm/shared_memory/window.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/comm/peer_failed.h"
#include "tessera/comm/process_group.h"
#include "tessera/diagnostics/wait.h"

namespace tessera::comm {

namespace {

constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// Rank 0 of the group makes the memory and the others map it. Returns the error's text when this
/// rank fails.
std::string share_segment(ProcessGroup& group, std::size_t bytes, ipc::Segment& segment) {
  std::string error;
  at::Tensor address = at::zeros({4}, at::kLong);
  auto* numbers = address.data_ptr<std::int64_t>();
  if (group.rank() == 0) {
    try {
      segment = ipc::Segment::create(bytes);
      const auto own = segment.address().to_numbers();
      std::copy(own.begin(), own.end(), numbers);
    } catch (const CommError& e) {
      error = e.what();
    }
  }
  group.broadcast(address, 0);
  if (group.rank() == 0) {
    return error;
  }
  if (numbers[0] == 0) {
    return str("rank ", group.ranks().front(), " could not make the memory");
  }
  try {
    segment = ipc::Segment::open(ipc::SegmentAddress::from_numbers({numbers, numbers + 4}));
  } catch (const CommError& e) {
    error = e.what();
  }
  return error;
}

} // namespace

struct Window::Counters {
  std::array<ipc::Counter, kCounters> of;
  RankFailures failures;
};

std::shared_ptr<Window> Window::make(ProcessGroup& group, std::size_t bytes_of_rank) {
  const std::size_t bytes = whole_pages(sizeof(GroupState)) +
                            static_cast<std::size_t>(group.size()) *
                                (whole_pages(sizeof(Counters)) + whole_pages(bytes_of_rank));
  ipc::Segment segment;
  const std::string error = share_segment(group, bytes, segment);
  // This exchange also keeps the maker's descriptor open until all ranks have mapped the memory.
  at::Tensor failed = at::full({1}, error.empty() ? 0 : 1, at::kLong);
  group.all_reduce(failed, ReduceOp::kMax);
  if (failed.item<std::int64_t>() != 0) {
    throw CommError(
        str("shared memory of ",
            bytes,
            " bytes for ",
            group.info().text(),
            ": ",
            error.empty() ? "another rank could not map it" : error,
            "; set same_node to 'mpi' when ranks cannot see each other's "
            "processes"));
  }
  return std::shared_ptr<Window>(
      new Window(group.info(), std::move(segment), whole_pages(bytes_of_rank)));
}

Window::Window(GroupInfo info, ipc::Segment segment, std::size_t bytes_of_rank)
    : info_(std::move(info)),
      segment_(std::move(segment)),
      bytes_of_rank_(bytes_of_rank),
      state_(reinterpret_cast<GroupState*>(segment_.data())) {}

Window::~Window() {
  if (std::uncaught_exceptions() > 0) {
    fail("it ended with an error");
  }
}

Window::Counters& Window::counters(int rank) const {
  return *reinterpret_cast<Counters*>(
      segment_.data() + whole_pages(sizeof(GroupState)) +
      static_cast<std::size_t>(rank) * whole_pages(sizeof(Counters)));
}

std::byte* Window::region(int rank) const {
  return segment_.data() + whole_pages(sizeof(GroupState)) +
         static_cast<std::size_t>(info_.size()) * whole_pages(sizeof(Counters)) +
         static_cast<std::size_t>(rank) * bytes_of_rank_;
}

void Window::post(int counter, std::uint32_t value) {
  counters(info_.rank).of[static_cast<std::size_t>(counter)].post(value);
}

void Window::wait(int rank, int counter, std::uint32_t target, const char* what) {
  ipc::Counter& theirs = counters(rank).of[static_cast<std::size_t>(counter)];
  if (theirs.has_reached(target) || theirs.spin_until(target)) {
    return;
  }
  const Deadline deadline(info_.timeout);
  const int peer = info_.ranks[static_cast<std::size_t>(rank)];
  const std::string place = str(what, " of ", info_.text());
  diagnostics::Wait patience;
  const auto look = [&] {
    check(rank, theirs, target, what);
    if (const std::string why = patience.in_vain(peer, [&] { return place; }); !why.empty()) {
      const std::string reason = str(place, ": nothing will come from rank ", peer, ", ", why);
      fail(reason);
      throw CommError(reason);
    }
  };
  if (theirs.wait_until(target, deadline, look)) {
    return;
  }
  const std::string reason =
      str(place,
          ": rank ",
          info_.ranks[static_cast<std::size_t>(info_.rank)],
          " waited ",
          info_.timeout.count(),
          " ms for rank ",
          peer);
  fail(reason);
  throw CommError(reason);
}

void Window::check(int rank, ipc::Counter& theirs, std::uint32_t target, const char* what) {
  state_->throw_if_failed(info_, [&] { return str(what, " of ", info_.text()); });
  if (state_->is_broken()) {
    leave(info_.rank); // the state names the rank that broke it
  }
  const std::uint32_t told = counters(rank).failures.count.load(std::memory_order_acquire);
  if (theirs.has_reached(target)) { // perhaps posted before its failure
    return;
  }
  if (told > failures_) {
    leave(rank);
  }
}

void Window::fail(const std::string& reason) {
  state_->fail(info_.rank, reason);
}

void Window::abandon(const std::string& why) {
  ++failures_;
  counters(info_.rank).failures.add(0, why);
}

void Window::differs(int rank, std::uint32_t its_failures) {
  leave(its_failures > failures_ ? rank : info_.rank);
}

void Window::recover() {
  failures_ = 0;
  counters(info_.rank).failures.count.store(0);
  state_->broken.store(0);
}

void Window::leave(int origin) const {
  throw PeerFailed(counters(state_->break_by(origin)).failures.why.data());
}

} // namespace tessera::comm
