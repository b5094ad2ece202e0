#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/backends/shm/shm_engine.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/object_codec.h"
#include "tessera/comm/queued_group.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

namespace {

using SegmentPtr = std::shared_ptr<const shm::Segment>;

/// What the worlds of one process share.
class Hub {
 public:
  void send(int from, int to, int tag, std::vector<char> bytes) {
    {
      const std::lock_guard lock(mutex_);
      boxes_[{from, to, tag}].push_back(std::move(bytes));
    }
    arrived_.notify_all();
  }

  std::vector<char> receive(int from, int to, int tag, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[{from, to, tag}];
    const bool came = arrived_.wait_for(lock, timeout, [&] { return !box.empty(); });
    if (!came) {
      throw CommError(str(
          "no object came from rank ", from, " (tag ", tag, ") within ", timeout.count(), " ms"));
    }
    std::vector<char> bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }

  /// The memory of the `nth` group of these ranks; the first to ask makes it.
  SegmentPtr segment(const std::vector<int>& ranks, int nth) {
    const std::lock_guard lock(mutex_);
    const auto key = std::make_pair(ranks, nth);
    auto& entry = segments_[key];
    if (entry.first == nullptr) {
      entry.first = std::make_shared<const shm::Segment>(
          shm::Segment::heap(shm::group_segment_bytes(static_cast<int>(ranks.size()))));
    }
    const SegmentPtr segment = entry.first;
    if (++entry.second == static_cast<int>(ranks.size())) {
      segments_.erase(key); // all have it
    }
    return segment;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  // All guarded by mutex_.
  std::map<std::tuple<int, int, int>, std::deque<std::vector<char>>> boxes_;
  std::map<std::pair<std::vector<int>, int>, std::pair<SegmentPtr, int>> segments_;
};

class InprocWorld final : public World {
 public:
  InprocWorld(
      std::shared_ptr<Hub> hub,
      int rank,
      std::vector<std::string> hosts,
      WorldOptions options)
      : hub_(std::move(hub)), rank_(rank), hosts_(std::move(hosts)), options_(std::move(options)) {}

  int rank() const override {
    return rank_;
  }
  int size() const override {
    return static_cast<int>(hosts_.size());
  }
  int local_rank() const override {
    return rank();
  }
  int local_size() const override {
    return size();
  }
  const std::vector<std::string>& hosts() const override {
    return hosts_;
  }
  const WorldOptions& options() const override {
    return options_;
  }

  ProcessGroupPtr new_group(const std::string& name, const std::vector<int>& ranks) override {
    const GroupInfo info = make_group_info(*this, name, ranks);
    std::unique_ptr<Engine> engine;
    if (info.size() > 1) {
      const int nth = groups_made_[ranks]++;
      engine = std::make_unique<shm::ShmEngine>(info, hub_->segment(ranks, nth));
    }
    return std::make_shared<QueuedGroup>(info, std::move(engine));
  }

  void send(int peer, const c10::IValue& value, int tag) override {
    check_message(*this, peer, tag);
    hub_->send(rank_, peer, tag, encode_object(value));
  }

  c10::IValue receive(int peer, int tag) override {
    check_message(*this, peer, tag);
    const std::vector<char> bytes = hub_->receive(peer, rank_, tag, options_.timeout);
    return decode_object(bytes.data(), bytes.size());
  }

  [[noreturn]] void abort(const std::string& message, int code) override {
    std::fprintf(stderr, "rank %d: %s\n", rank_, message.c_str());
    std::fflush(stderr);
    ::_exit(code != 0 ? code : 1);
  }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
  std::vector<std::string> hosts_;
  WorldOptions options_;
  std::map<std::vector<int>, int> groups_made_;
};

} // namespace

std::vector<WorldPtr> inproc_worlds(int size, const WorldOptions& options) {
  check_options(options);
  if (size < 1) {
    throw ConfigError(str("a world of ", size, " ranks; expected 1 or more"));
  }
  if (options.same_node == "mpi") {
    throw ConfigError(
        "same_node is 'mpi', but worlds inside one process have no MPI; "
        "expected 'auto' or 'shm'");
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto hub = std::make_shared<Hub>();
  std::vector<WorldPtr> worlds;
  for (int rank = 0; rank < size; ++rank) {
    worlds.push_back(std::make_shared<InprocWorld>(
        hub, rank, std::vector<std::string>(static_cast<std::size_t>(size), host.data()), options));
  }
  return worlds;
}

} // namespace tessera::comm
