// MpiEngine's part in what comm/recoverable.h promises. A rank whose own code
// has failed tells every other in a message, and whoever waits looks for such
// messages. What was on its way then is left behind in the old communicator.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/comm/backends/mpi/engine_messages.h"
#include "tessera/comm/backoff.h"

namespace tessera::comm::mpi {

MpiEngine::MpiEngine(GroupInfo info, MPI_Comm comm, std::vector<int> nodes)
    : info_(std::move(info)),
      comm_(std::make_unique<Communicator>(comm)),
      nodes_(std::move(nodes)),
      told_(info_.ranks.size()) {
  TESSERA_CHECK(static_cast<int>(nodes_.size()) == info_.size());
}

MpiEngine::~MpiEngine() = default;

void MpiEngine::abandon(std::uint32_t started, const std::string& why) {
  const std::lock_guard lock(mutex_);
  // An operation that broke here will not be ended here.
  started = std::min(started, broken_at_.value_or(started));
  abandoned_at_.push_back(started);
  auto sent = std::make_unique<SentNotice>();
  sent->notice.started = started;
  const std::size_t length = std::min(why.size(), sent->notice.why.size() - 1);
  std::memcpy(sent->notice.why.data(), why.data(), length);
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer == info_.rank) {
      continue;
    }
    sent->requests.push_back(MPI_REQUEST_NULL);
    check_mpi(
        MPI_Isend(
            &sent->notice,
            static_cast<int>(sizeof(Notice)),
            MPI_BYTE,
            peer,
            kNoticeTag,
            comm_->get(),
            &sent->requests.back()),
        "telling the group of a failure");
  }
  sent_.push_back(std::move(sent));
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
        MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, comm_->get(), &there, &status),
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
            comm_->get(),
            MPI_STATUS_IGNORE),
        "hearing of a failure");
    told_[static_cast<std::size_t>(status.MPI_SOURCE)].push_back(notice);
  }
}

// As ShmEngine's: a peer that failed once more than this rank, before it
// started this operation, will never be in it.
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

// What this rank waited for is not to be written any more. What it sends stays
// as it is: somebody may still take it, so its memory is kept (QueuedGroup).
void MpiEngine::drop(Exchange& exchange) {
  for (std::size_t i = 0; i < exchange.requests.size(); ++i) {
    MPI_Request& request = exchange.requests[i];
    if (request == MPI_REQUEST_NULL) {
      continue;
    }
    if (exchange.messages[i].receiving) {
      MPI_Cancel(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
      MPI_Request_free(&request);
    }
  }
}

std::uint32_t MpiEngine::recover() {
  const std::lock_guard lock(mutex_);
  // Whether anything was told or broke, and how far the furthest has come.
  // MPI's own collectives do not meet our messages.
  std::array<unsigned, 2> mine = {sequence_, abandoned_at_.empty() && !broken_at_ ? 0U : 1U};
  std::array<unsigned, 2> all{};
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Iallreduce(mine.data(), all.data(), 2, MPI_UNSIGNED, MPI_MAX, comm_->get(), &request),
      "agreeing after a failed step");
  wait_for(request, "agreeing after a failed step");
  sequence_ = all[0];
  if (all[1] == 0) {
    return sequence_;
  }
  MPI_Comm fresh = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_idup(comm_->get(), &fresh, &request), "a new communicator after a failed step");
  wait_for(request, "a new communicator after a failed step");
  // Not freed: messages of the failed step may lie in it, and memory that they
  // are in is still MPI's.
  static_cast<void>(comm_.release());
  for (auto& sent : sent_) {
    static_cast<void>(sent.release());
  }
  sent_.clear();
  static_cast<void>(new std::vector<std::byte>(std::move(staging_)));
  staging_ = {};
  comm_ = std::make_unique<Communicator>(fresh);
  abandoned_at_.clear();
  broken_at_.reset();
  std::fill(told_.begin(), told_.end(), std::vector<Notice>());
  return sequence_;
}

void MpiEngine::wait_for(MPI_Request request, const char* what) const {
  Backoff backoff;
  int done = 0;
  while (done == 0) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done != 0) {
      return;
    }
    if (cancelled() || backoff.waited() > info_.timeout) {
      throw CommError(
          str(what,
              " in ",
              info_.text(),
              ": a rank did not come within ",
              info_.timeout.count(),
              " ms"));
    }
    backoff.pause();
  }
}

} // namespace tessera::comm::mpi
