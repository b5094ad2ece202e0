#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "tessera/comm/process_group.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

/// Makes the ranks of a group run their tasks in one order: the first rank leads and announces each
/// choice, the others follow. It is needed wherever tasks contain collectives (tensor parallelism),
/// and for `deterministic_server`. The serial numbers of StepWork distinguish steps.
/// Not collective. Threads: server thread only.
class OrderChannel {
 public:
  /// `transport` joins the ranks of `group`, carries nothing else, and outlives
  /// this; the group's first rank is the leader.
  OrderChannel(comm::ProcessGroup& group, transport::Transport& transport);

  bool leads() const {
    return group_.rank() == 0;
  }

  /// Leader: announces that all ranks run `key` next.
  void announce(std::int64_t serial, std::uint64_t key);
  /// Leader: announces that nothing more comes in this step.
  void announce_end(std::int64_t serial, bool failed);

  struct Order {
    std::uint64_t key = 0;
    bool end = false;
    bool failed = false;
  };
  /// Follower: returns the next order of the step, or nullopt after `timeout`.
  /// Throws: CommError when a rank of the group is gone.
  std::optional<Order> next(std::int64_t serial, std::chrono::milliseconds timeout);

  int leader_rank() const {
    return group_.ranks().front();
  }

 private:
  struct Message {
    std::int64_t serial = 0;
    Order order;
  };
  void send(const Message& message);

  comm::ProcessGroup& group_;
  transport::Transport& transport_;
};

} // namespace tessera::runtime
