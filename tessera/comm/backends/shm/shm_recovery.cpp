// ShmEngine's part in what ProcessGroup::abandon promises: ranks whose own code
// has failed, peers that wait for them, and how all come to one point again.
#include <algorithm>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/comm/backends/shm/shm_engine.h"
#include "tessera/comm/peer_failed.h"

namespace tessera::comm::shm {

void ShmEngine::abandon(std::uint32_t started, const std::string& why) {
  const std::lock_guard lock(mutex_);
  abandoned_at_.push_back(started);
  block(info_.rank).failures.add(started, why);
}

std::uint32_t ShmEngine::failures_before(std::uint32_t sequence) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(
      std::count_if(abandoned_at_.begin(), abandoned_at_.end(), [&](std::uint32_t started) {
        return !ipc::Counter::is_at_or_after(started, sequence);
      }));
}

void ShmEngine::check_whole() const {
  if (state_->is_broken()) {
    leave(info_.rank); // the state names the rank that broke it
  }
}

// A peer that failed once more than this rank, before it started this
// operation, will never be in it.
void ShmEngine::check_abandoned() const {
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer != info_.rank && block(peer).failures.misses(sequence_, failures_)) {
      leave(peer);
    }
  }
}

void ShmEngine::leave(int origin) const {
  throw PeerFailed(block(state_->break_by(origin)).failures.why.data());
}

std::uint32_t ShmEngine::recover() {
  RankBlock& mine = block(info_.rank);
  const auto later = [](std::uint32_t a, std::uint32_t b) {
    return ipc::Counter::is_at_or_after(a, b) ? a : b;
  };
  mine.rounds = base_;
  for (const ipc::Counter* stage : {&mine.filled, &mine.reduced, &mine.drained}) {
    mine.rounds = later(mine.rounds, stage->value.load());
  }
  mine.sequence = sequence_;
  meet(); // nobody is in an operation any more
  for (int peer = 0; peer < info_.size(); ++peer) {
    base_ = later(base_, block(peer).rounds);
    sequence_ = later(sequence_, block(peer).sequence);
  }
  for (ipc::Counter* stage : {&mine.filled, &mine.reduced, &mine.drained}) {
    stage->value.store(base_);
  }
  mine.entered.store(sequence_);
  mine.failures.count.store(0);
  {
    const std::lock_guard lock(mutex_);
    abandoned_at_.clear();
  }
  state_->broken.store(0); // by all: none is in an operation before the next meeting
  meet();
  return sequence_;
}

void ShmEngine::meet() {
  const std::uint32_t target = ++meetings_;
  block(info_.rank).met.post(target);
  const Deadline deadline(info_.timeout);
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (!block(peer).met.wait_until(target, deadline, [this] { check_running(); })) {
      fail(
          str(info_.text(),
              " after a failed step: rank ",
              global(peer),
              " did not come within ",
              info_.timeout.count(),
              " ms to go on"));
    }
  }
}

} // namespace tessera::comm::shm
