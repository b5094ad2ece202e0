#include "tessera/transport/mailbox.h"

#include <algorithm>
#include <utility>

#include <sys/prctl.h>

#include <pthread.h>

namespace tessera::transport {

namespace {

// The interval at which a waiting rank checks that its peers are alive.
constexpr std::chrono::milliseconds kCheckEvery{100};
// The message thread needs no clock; this only bounds one sleep.
constexpr std::chrono::nanoseconds kLongSleep = std::chrono::seconds(3600);

} // namespace

Mailbox::Mailbox(Parts parts)
    : parts_(std::move(parts)),
      own_(parts_.peers.at(parts_.self).mapping->control()),
      outbox_(parts_.peers, parts_.self, *parts_.channel, counters_),
      inbox_(
          parts_.peers,
          parts_.self,
          *parts_.channel,
          parts_.zero_copy_share,
          std::make_shared<ReceivePool>(
              parts_.peers[static_cast<std::size_t>(parts_.self)].mapping->arena_bytes())),
      waiter_(parts_.may_spin),
      next_check_(kCheckEvery) {
  for (std::size_t i = 0; i < parts_.peers.size(); ++i) {
    index_of_rank_.emplace(parts_.peers[i].rank, static_cast<int>(i));
  }
  thread_ = std::thread([this] { run_on_message_thread(); });
}

Mailbox::~Mailbox() {
  // This comes first, so that two ranks that leave do not wait for each other to read.
  own_.closed.store(1);
  for (const Peer& peer : parts_.peers) {
    if (peer.mapping) {
      peer.mapping->control().thread.raise();
    }
  }
  stop_.store(true);
  own_.thread.raise();
  thread_.join();
}

bool Mailbox::all_taken() {
  if (!outbox_.flush()) {
    return false;
  }
  for (std::size_t i = 0; i < parts_.peers.size(); ++i) {
    if (parts_.channel->sending_to(static_cast<int>(i)) && !has_left(parts_.peers[i])) {
      return false;
    }
  }
  return true;
}

std::optional<std::chrono::nanoseconds> Mailbox::work_on_message_thread() {
  outbox_.flush();
  return parts_.channel->progress(
      [this](int source, std::vector<std::byte> bytes) {
        inbox_.arrived(source, std::move(bytes));
      },
      own_.inbox.sleepers.load() != 0);
}

void Mailbox::run_on_message_thread() {
  ::pthread_setname_np(::pthread_self(), "tessera-message");
  // A message of another node waits until this thread's short sleep ends, so the kernel may not
  // lengthen it.
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  try {
    shm::Waiter waiter(false);
    while (!stop_.load()) {
      const auto seen = own_.thread.value.load();
      const auto next = work_on_message_thread();
      if (!stop_.load()) {
        waiter.wait(own_.thread, seen, next.value_or(kLongSleep));
      }
    }
    const Deadline deadline(parts_.drain);
    for (;;) {
      const auto seen = own_.thread.value.load();
      const auto next = work_on_message_thread();
      if (all_taken() || deadline.passed()) {
        return;
      }
      const std::chrono::nanoseconds sleep = next.value_or(kCheckEvery);
      waiter.wait(own_.thread, seen, std::min<>(sleep, {kCheckEvery}));
    }
  } catch (...) {
    // The error must not leave this thread; the next caller gets it.
    failure_ = std::current_exception();
    failed_.store(true);
    own_.inbox.raise();
  }
}

void Mailbox::throw_if_failed() {
  if (failed_.load()) {
    std::rethrow_exception(failure_);
  }
  if (const Peer* peer = dead_.load()) {
    throw_gone(*peer);
  }
}

int Mailbox::index_of(int peer) const {
  const auto found = index_of_rank_.find(peer);
  if (found == index_of_rank_.end()) {
    throw CommError(
        str("rank ",
            parts_.peers[parts_.self].rank,
            " cannot send to rank ",
            peer,
            ": it is no peer of this transport"));
  }
  return found->second;
}

void Mailbox::send(int peer, const Header& header, const c10::IValue& body) {
  throw_if_failed();
  outbox_.send(index_of(peer), header, body);
}

void Mailbox::send_packed(int peer, const Header& header, const std::vector<at::Tensor>& tensors) {
  throw_if_failed();
  outbox_.send_packed(index_of(peer), header, tensors);
}

std::optional<Parcel> Mailbox::try_receive() {
  auto parcel = inbox_.poll();
  if (!parcel) {
    throw_if_failed();
  }
  return parcel;
}

const Peer* Mailbox::find_dead() const {
  for (const Peer& peer : parts_.peers) {
    if (peer.process && peer.mapping->control().closed.load() == 0 && peer.process->ended()) {
      return &peer;
    }
  }
  return nullptr;
}

std::optional<Parcel> Mailbox::receive(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  for (;;) {
    const auto seen = own_.inbox.value.load();
    const bool known = failed_.load() || dead_.load() != nullptr;
    if (auto parcel = inbox_.poll()) {
      return parcel;
    }
    if (known) { // and what arrived before has been delivered
      throw_if_failed();
    }
    if (next_check_.passed()) {
      next_check_.restart();
      if (const Peer* peer = find_dead()) {
        dead_.store(peer);
        continue;
      }
    }
    if (deadline.passed()) {
      return std::nullopt;
    }
    waiter_.wait(own_.inbox, seen, std::min(deadline.left(), next_check_.left()));
  }
}

Counters Mailbox::counters() const {
  Counters counters;
  counters.messages_sent = counters_.messages_sent.load();
  counters.bytes_sent = counters_.bytes_sent.load();
  counters.shared_memory_tensors = counters_.shared_memory_tensors.load();
  counters.mpi_tensors = counters_.mpi_tensors.load();
  return counters;
}

} // namespace tessera::transport
