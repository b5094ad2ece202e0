// ShmEngine's part in what comm/recoverable.h promises: ranks whose own code
// has failed, peers that wait for them, and how all come to one point again.
#include <algorithm>
#include <chrono>

#include "tessera/base/error.h"
#include "tessera/comm/backends/shm/shm_engine.h"

namespace tessera::comm::shm {

void ShmEngine::abandon(std::uint32_t started, const std::string& why) {
  const std::lock_guard lock(mutex_);
  abandoned_at_.push_back(started);
  block(info_.rank).failures.tell(started, why);
}

std::uint32_t ShmEngine::failures_before(std::uint32_t sequence) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(
      std::count_if(abandoned_at_.begin(), abandoned_at_.end(), [&](std::uint32_t started) {
        return !reached(started, sequence);
      }));
}

void ShmEngine::check_whole() const {
  if (header_->broken.load(std::memory_order_acquire) != 0) {
    leave(info_.rank); // whose it is stands there already
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
  std::uint32_t nobody = 0;
  const auto first = static_cast<std::uint32_t>(origin) + 1;
  if (!header_->broken.compare_exchange_strong(nobody, first)) {
    origin = static_cast<int>(nobody) - 1;
  }
  throw PeerFailed(block(origin).failures.why.data());
}

std::uint32_t ShmEngine::recover() {
  RankBlock& mine = block(info_.rank);
  const auto later = [](std::uint32_t a, std::uint32_t b) { return reached(a, b) ? a : b; };
  mine.rounds = base_;
  for (const Counter* stage : {&mine.filled, &mine.reduced, &mine.drained}) {
    mine.rounds = later(mine.rounds, stage->value.load());
  }
  mine.sequence = sequence_;
  meet(); // nobody is in an operation any more
  for (int peer = 0; peer < info_.size(); ++peer) {
    base_ = later(base_, block(peer).rounds);
    sequence_ = later(sequence_, block(peer).sequence);
  }
  for (Counter* stage : {&mine.filled, &mine.reduced, &mine.drained}) {
    stage->value.store(base_);
  }
  mine.entered.store(sequence_);
  mine.failures.count.store(0);
  {
    const std::lock_guard lock(mutex_);
    abandoned_at_.clear();
  }
  header_->broken.store(0); // by all: none is in an operation before the next
  meet();
  return sequence_;
}

void ShmEngine::meet() {
  const std::uint32_t target = ++meetings_;
  post(block(info_.rank).met, target);
  const auto deadline = std::chrono::steady_clock::now() + info_.timeout;
  for (int peer = 0; peer < info_.size(); ++peer) {
    Counter& theirs = block(peer).met;
    while (!reached(theirs.value.load(std::memory_order_acquire), target)) {
      theirs.sleepers.fetch_add(1);
      const std::uint32_t seen = theirs.value.load();
      if (!reached(seen, target)) {
        wait_while_equal(theirs.value, seen, kSleepPiece);
      }
      theirs.sleepers.fetch_sub(1);
      check_running();
      if (std::chrono::steady_clock::now() >= deadline) {
        fail(
            str(info_.text(),
                " after a failed step: rank ",
                info_.ranks[static_cast<std::size_t>(peer)],
                " did not come within ",
                info_.timeout.count(),
                " ms to go on"));
      }
    }
  }
}

} // namespace tessera::comm::shm
