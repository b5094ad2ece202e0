// How ShmEngine waits for its peers, and what it says when they do not come or do something else.
#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/comm/backends/shm/shm_engine.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/diagnostics/wait.h"

namespace tessera::comm::shm {

// ---- waiting --------------------------------------------------------------

int ShmEngine::first_behind(ipc::Counter RankBlock::*stage, std::uint32_t target) const {
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer != info_.rank && !(block(peer).*stage).has_reached(target)) {
      return peer;
    }
  }
  return -1;
}

int ShmEngine::fill_blocker(std::uint32_t round) const {
  // The slot still holds what the round kDepth earlier put there.
  return first_behind(&RankBlock::drained, round + 1 - kDepth);
}

int ShmEngine::reduce_blocker(std::uint32_t round) const {
  return rounds_.has_reduce_stage() ? first_behind(&RankBlock::filled, round + 1) : -1;
}

int ShmEngine::drain_blocker(std::uint32_t round) const {
  const int root = operation_.root;
  if (operation_.kind == Collective::kBroadcast) {
    return info_.rank == root || block(root).filled.has_reached(round + 1) ? -1 : root;
  }
  if (operation_.kind == Collective::kReduce && info_.rank != root) {
    return -1;
  }
  return first_behind(
      rounds_.has_reduce_stage() ? &RankBlock::reduced : &RankBlock::filled, round + 1);
}

void ShmEngine::sleep_on(int rank, ipc::Counter RankBlock::*stage, std::uint32_t target) {
  if (rank < 0) {
    return; // the peer has come meanwhile
  }
  ipc::Counter& counter = block(rank).*stage;
  if (counter.spin_until(target)) {
    return;
  }
  diagnostics::Wait wait(/*lockstep=*/true);
  const auto check = [this, rank, &wait] {
    check_running();
    check_whole();
    check_abandoned();
    const std::string why = wait.in_vain(global(rank), [this] { return operation_text(); });
    if (!why.empty()) {
      fail(
          str(operation_text(),
              ": rank ",
              global(info_.rank),
              " waits for rank ",
              global(rank),
              ", ",
              why));
    }
  };
  if (!counter.wait_until(target, Deadline(info_.timeout), check)) {
    fail(
        str(operation_text(),
            ": rank ",
            global(info_.rank),
            " saw no progress for ",
            info_.timeout.count(),
            " ms; ",
            missing_text()));
  }
}

// ---- errors ---------------------------------------------------------------

void ShmEngine::check_notices(std::uint32_t round) const {
  for (int peer = 0; peer < info_.size(); ++peer) {
    const RankBlock& other = block(peer);
    if (peer == info_.rank || !other.filled.has_reached(round + 1)) {
      continue;
    }
    const Notice& notice = other.notices[round % kDepth];
    if (notice.failures != failures_) {
      leave(notice.failures > failures_ ? peer : info_.rank);
    }
    if (notice.sequence != sequence_ || !notice.operation.is_same_call(operation_)) {
      fail(
          str(operation_text(),
              ": rank ",
              global(peer),
              " calls ",
              notice.operation.text(notice.sequence),
              "; all ranks must make the same calls in the same order"));
    }
  }
}

void ShmEngine::check_running() const {
  state_->throw_if_failed(info_, [this] { return operation_text(); });
  if (cancelled()) {
    fail(
        str(operation_text(),
            ": rank ",
            global(info_.rank),
            " gave the group up after an error of its own"));
  }
}

void ShmEngine::fail(const std::string& reason) const {
  state_->fail(info_.rank, reason);
  throw CommError(reason);
}

int ShmEngine::global(int rank) const {
  return info_.ranks[static_cast<std::size_t>(rank)];
}

std::string ShmEngine::operation_text() const {
  return operation_.text(sequence_) + " in " + info_.text();
}

std::string ShmEngine::missing_text() const {
  std::string missing;
  for (int peer = 0; peer < info_.size(); ++peer) {
    const std::uint32_t entered = block(peer).entered.load(std::memory_order_acquire);
    if (!ipc::Counter::is_at_or_after(entered, sequence_)) {
      missing +=
          str(missing.empty() ? "" : ", ",
              "rank ",
              global(peer),
              " (began ",
              entered,
              " of ",
              sequence_,
              " operations)");
    }
  }
  return missing.empty() ? std::string("all ranks have arrived, but one stopped inside")
                         : "not arrived: " + missing;
}

} // namespace tessera::comm::shm
