#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/sharding/shard_nodes.h"
#include "tessera/transport/transport.h"

namespace tessera::sharding {

/// Answers ranks of other nodes that ask for parts, and brings this rank theirs. A thread of its
/// own waits for messages, so that no rank needs the help of another one's script or server: a
/// branch that one rank takes gathers what it reads.
///
/// It answers until every rank of the group has left, so that a rank may be done with its model
/// before the others are.
/// Threads: any.
class PartService {
 public:
  /// Parts of the ranks of this node, one after the other.
  struct Local {
    std::string name;
    std::shared_ptr<const void> memory; // keeps `numbers`
    const std::byte* numbers = nullptr;
    std::size_t part_bytes = 0;
  };
  /// A whole parameter that is being gathered, or is there.
  struct Gathering {
    int parameter = 0;
    at::Tensor whole; // bytes; undefined once it is released
    int missing = 0; // replies
  };
  struct Options {
    /// One message a node, with the parts of all its ranks; or one message a rank.
    bool by_node = true;
    std::chrono::milliseconds timeout{0}; // of a wait for parts
  };

  /// `ranks`: of the shard group, ascending global ones. Collective over them.
  PartService(
      comm::World& world,
      std::vector<int> ranks,
      ShardNodes nodes,
      std::vector<Local> parameters,
      const Options& options);
  ~PartService();
  PartService(const PartService&) = delete;
  PartService& operator=(const PartService&) = delete;

  /// Returns at once; the parts of this node are there.
  std::shared_ptr<Gathering> start(int parameter);
  /// Throws: CommError when the parts do not come within the timeout.
  void wait(const Gathering& gathering);
  /// What is left of it when it arrives is dropped.
  void release(Gathering& gathering);
  /// No answer is under way to this rank any more. Throws: as `wait`.
  void drain();
  /// This rank asks for nothing more. It is not waited for.
  void leave();

  /// Messages with parts that this rank has got.
  std::int64_t messages() const;

 private:
  struct Fields;
  int position_of(int global_rank) const;
  void run();
  void answer(int source, const Fields& request);
  void take(int source, const Fields& reply, const at::Tensor& parts);
  template <typename Until>
  void wait_until(std::unique_lock<std::mutex>& lock, const Until& until, const std::string& what);

  std::vector<int> ranks_;
  ShardNodes nodes_;
  int rank_; // of this rank, in the group
  std::vector<Local> parameters_;
  Options options_;
  transport::TransportPtr transport_;

  mutable std::mutex mutex_; // of what follows
  std::condition_variable changed_;
  std::unordered_map<std::int64_t, std::shared_ptr<Gathering>> under_way_;
  std::int64_t next_number_ = 0;
  std::int64_t messages_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;

  std::thread thread_; // last: it uses all of the above
};

} // namespace tessera::sharding
