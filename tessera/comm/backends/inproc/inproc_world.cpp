#include "tessera/comm/backends/inproc/inproc_world.h"

#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <tuple>
#include <utility>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/codec/object_codec.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/queued_group.h"

namespace tessera::comm::inproc {

class Hub {
 public:
  void send(int from, int to, int tag, std::vector<std::byte> bytes) {
    {
      const std::lock_guard lock(mutex_);
      boxes_[{from, to, tag}].push_back(std::move(bytes));
    }
    arrived_.notify_all();
  }

  std::vector<std::byte> receive(int from, int to, int tag, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[{from, to, tag}];
    const bool came = arrived_.wait_for(lock, timeout, [&] { return !box.empty(); });
    if (!came) {
      throw CommError(str(
          "no object came from rank ", from, " (tag ", tag, ") within ", timeout.count(), " ms"));
    }
    std::vector<std::byte> bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }

  /// Returns the memory of the `nth` group of these ranks; the first rank to ask makes it.
  InprocWorld::SegmentPtr segment(const std::vector<int>& ranks, int nth, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto key = std::make_pair(ranks, nth);
    auto& [shared, taken] = segments_[key];
    if (shared == nullptr) {
      shared = std::make_shared<const ipc::Segment>(ipc::Segment::heap(bytes));
    }
    const InprocWorld::SegmentPtr segment = shared;
    if (++taken == static_cast<int>(ranks.size())) {
      segments_.erase(key); // all have it
    }
    return segment;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  // All guarded by mutex_.
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes_;
  std::map<std::pair<std::vector<int>, int>, std::pair<InprocWorld::SegmentPtr, int>> segments_;
};

std::shared_ptr<Hub> make_hub() {
  return std::make_shared<Hub>();
}

InprocWorld::InprocWorld(
    std::shared_ptr<Hub> hub,
    int rank,
    int size,
    WorldOptions options,
    EngineMaker make_engine)
    : hub_(std::move(hub)),
      rank_(rank),
      options_(std::move(options)),
      make_engine_(std::move(make_engine)) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  hosts_.assign(static_cast<std::size_t>(size), host.data());
}

ProcessGroupPtr InprocWorld::new_group(const std::string& name, const std::vector<int>& ranks) {
  const GroupInfo info = make_group_info(*this, name, ranks);
  std::unique_ptr<Engine> engine;
  if (info.size() > 1) {
    const int nth = groups_made_[ranks]++;
    const std::size_t bytes = make_engine_.segment_bytes(info.size());
    engine = make_engine_.make(info, hub_->segment(ranks, nth, bytes));
  }
  return std::make_shared<QueuedGroup>(info, std::move(engine));
}

void InprocWorld::send(int peer, const c10::IValue& value, int tag) {
  check_message(*this, peer, tag);
  hub_->send(rank_, peer, tag, encode_object(value));
}

c10::IValue InprocWorld::receive(int peer, int tag) {
  check_message(*this, peer, tag);
  const std::vector<std::byte> bytes = hub_->receive(peer, rank_, tag, options_.timeout);
  return decode_object(bytes);
}

void InprocWorld::abort(const std::string& message, int code) {
  std::fprintf(stderr, "rank %d: %s\n", rank_, message.c_str());
  std::fflush(stderr);
  ::_exit(code != 0 ? code : 1);
}

} // namespace tessera::comm::inproc
