// MpiEngine's part in what ProcessGroup::abandon promises. A rank whose own code
// has failed tells every other in a message, and whoever waits looks for such
// messages. `recover` takes what was on its way then out of MPI.
#include <algorithm>
#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/backends/mpi/mpi_engine.h"
#include "tessera/comm/backoff.h"
#include "tessera/comm/peer_failed.h"

namespace tessera::comm::mpi {

namespace {

/// No operation has this tag.
constexpr int kNoticeTag = 32767;

constexpr std::uint32_t kMostCallerTags = 4096;

std::uint32_t largest_tag(MPI_Comm comm) {
  void* value = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &found), "MPI_Comm_get_attr");
  return found != 0 ? static_cast<std::uint32_t>(*static_cast<int*>(value)) : kNoticeTag;
}

} // namespace

MpiEngine::MpiEngine(GroupInfo info, MPI_Comm comm, std::vector<int> nodes)
    : info_(std::move(info)),
      messages_(info_, comm),
      nodes_(std::move(nodes)),
      caller_tags_(std::clamp((largest_tag(comm) + 1) / kCallTags, 1U, kMostCallerTags)),
      told_(info_.ranks.size()) {
  TESSERA_CHECK(static_cast<int>(nodes_.size()) == info_.size());
}

void MpiEngine::abandon(std::uint32_t started, const std::string& why) {
  const std::lock_guard lock(mutex_);
  // An operation that broke on this rank is not finished on it.
  started = std::min(started, broken_at_.value_or(started));
  abandoned_at_.push_back(started);
  const auto notice = std::make_shared<Notice>();
  notice->started = started;
  notice->why[why.copy(notice->why.data(), notice->why.size() - 1)] = '\0';
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer != info_.rank) {
      messages_.leave(messages_.send(peer, kNoticeTag, notice.get(), sizeof(Notice)), notice);
    }
  }
}

std::uint32_t MpiEngine::failures_before(std::uint32_t sequence) const {
  const std::lock_guard lock(mutex_);
  if (broken_at_) {
    throw PeerFailed(broken_why_);
  }
  return static_cast<std::uint32_t>(
      std::count_if(abandoned_at_.begin(), abandoned_at_.end(), [&](std::uint32_t started) {
        return started < sequence;
      }));
}

void MpiEngine::take_notices() {
  for (;;) {
    int there = 0;
    MPI_Status status;
    check_mpi(
        MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, messages_.comm(), &there, &status),
        "looking for failures");
    if (there == 0) {
      return;
    }
    Notice notice;
    check_mpi(
        MPI_Recv(
            &notice,
            static_cast<int>(sizeof(Notice)),
            MPI_BYTE,
            status.MPI_SOURCE,
            kNoticeTag,
            messages_.comm(),
            MPI_STATUS_IGNORE),
        "hearing of a failure");
    messages_.note_received(status.MPI_SOURCE);
    told_[static_cast<std::size_t>(status.MPI_SOURCE)].push_back(notice);
  }
}

// As in ShmEngine, a peer that failed once more than this rank, before it started this operation,
// will never take part in it.
void MpiEngine::check_abandoned() {
  for (const std::vector<Notice>& told : told_) {
    if (told.size() > failures_ && told[failures_].started < sequence_) {
      leave(told.front().why.data());
    }
  }
}

void MpiEngine::leave(const std::string& why) {
  const std::lock_guard lock(mutex_);
  broken_at_ = sequence_ - 1;
  broken_why_ = why;
  throw PeerFailed(why);
}

std::uint32_t MpiEngine::recover() {
  Backoff backoff(info_.timeout);
  const auto pause = [&] {
    if (cancelled() || backoff.expired()) {
      throw CommError(
          str(info_.text(),
              " after a failed step: a rank did not come within ",
              info_.timeout.count(),
              " ms to go on"));
    }
    backoff.pause();
  };
  const std::lock_guard lock(mutex_);
  // The operations started by the furthest rank, and whether any rank received a failure notice or
  // broke.
  struct Agreement {
    std::array<unsigned, 2> mine;
    std::array<unsigned, 2> all;
  };
  const auto agreement = std::make_shared<Agreement>();
  agreement->mine = {sequence_, abandoned_at_.empty() && !broken_at_ ? 0U : 1U};
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Iallreduce(
          agreement->mine.data(),
          agreement->all.data(),
          2,
          MPI_UNSIGNED,
          MPI_MAX,
          messages_.comm(),
          &request),
      "agreeing after a failed step");
  messages_.complete(request, "agreeing after a failed step", pause, agreement);
  sequence_ = agreement->all[0];
  if (agreement->all[1] == 0) {
    return sequence_;
  }
  messages_.drain(pause);
  abandoned_at_.clear();
  broken_at_.reset();
  std::fill(told_.begin(), told_.end(), std::vector<Notice>());
  return sequence_;
}

} // namespace tessera::comm::mpi
