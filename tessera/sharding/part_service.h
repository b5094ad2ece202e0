#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/sharding/shard_nodes.h"
#include "tessera/transport/transport.h"

namespace tessera::sharding {

/// Answers ranks of other nodes that ask for parts, and brings this rank theirs. A thread of its
/// own waits for messages, so that no rank needs the help of another one's script or server: a
/// branch that one rank takes gathers what it reads.
///
/// It serves all models of a process, each until every rank of the shard group has left it, so that
/// a rank may be done with its model before the others are.
/// Threads: any, unless a member says otherwise.
class PartService {
 public:
  struct Parameter {
    std::string name;
    /// The parts of this node's ranks are here, each at its place in the whole.
    std::byte* parts = nullptr;
    /// What is fetched is written here, each part at its place; the same memory, or this rank's
    /// own, which needs the parts of this node, too.
    std::byte* whole = nullptr;
    std::size_t part_bytes = 0;
  };
  struct Model {
    std::shared_ptr<const void> memory; // keeps what the parameters point to
    ShardNodes nodes;
    /// One message from each other node, with the parts of all its ranks; or one from each rank.
    bool by_node = true;
    std::vector<Parameter> parameters;
    /// All parts of a parameter that this rank has fetched are there. Runs on the service's thread
    /// and calls nothing of the service.
    std::function<void(int parameter)> arrived;
  };

  /// `ranks`: of the shard group, ascending global ones. Collective over them.
  PartService(comm::World& world, std::vector<int> ranks);
  /// Waits for the other ranks' services to end, 10 s at most.
  ~PartService();
  PartService(const PartService&) = delete;
  PartService& operator=(const PartService&) = delete;

  /// Returns the model's number for the calls below. All ranks of the group add the same models in
  /// one order, and none starts a fetch before all have added the model.
  int add(Model model);
  /// Says that this rank fetches no more parts of this model. It waits for nobody.
  void leave(int model);

  /// Asks for the parts that are on other nodes, and returns. Requires that the parameter is not on
  /// its way to this rank already, and that nobody reads its whole.
  void fetch(int model, int parameter);
  /// Returns when nothing of this model is on its way to this rank. Throws: CommError after the
  /// timeout.
  void drain(int model);
  /// Throws what has ended the service's thread.
  void throw_if_failed() const;

  /// Counts what other nodes have sent to this rank.
  struct Counts {
    std::int64_t messages = 0;
    std::int64_t parts = 0;
    std::int64_t bytes = 0;
  };
  Counts counts() const;

 private:
  struct Fields;
  struct Served {
    Model model;
    std::size_t left = 0; // ranks
  };
  std::vector<int> positions_sent_by(const Model& model, int position) const;
  std::shared_ptr<Served> served(int model) const;
  void run();
  void answer(int source, const Fields& request);
  void take(int source, const Fields& reply, const at::Tensor& parts);
  void count_leave(int model);

  std::vector<int> ranks_;
  int rank_; // of this rank, in the group
  std::chrono::milliseconds timeout_;
  transport::TransportPtr transport_;

  mutable std::mutex mutex_; // of what follows
  std::condition_variable changed_;
  std::map<int, std::shared_ptr<Served>> models_;
  int next_model_ = 0;
  /// Messages that have to come yet, by model and parameter.
  std::map<std::pair<int, int>, std::size_t> under_way_;
  Counts counts_;
  std::exception_ptr failure_;
  std::atomic<bool> ending_{false};

  std::thread thread_; // last: it uses all of the above
};

} // namespace tessera::sharding
