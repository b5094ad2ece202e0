#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "tessera/comm/process_group.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

/// Makes the ranks of a group run their tasks in one order: the first rank
/// leads and announces each choice, the others follow. Needed wherever tasks
/// hold collectives (tensor parallelism), and for `deterministic_server`.
/// Threads: server thread only.
class OrderChannel {
 public:
  /// `transport` joins the ranks of `group`; its first rank is the leader.
  OrderChannel(
      comm::ProcessGroup& group,
      std::unique_ptr<transport::Transport> transport);

  bool leads() const {
    return group_.rank() == 0;
  }

  /// Leader: all followers will run `key` next.
  void announce(std::int64_t step, std::uint64_t key);
  /// Leader: nothing more comes in this step.
  void announce_end(std::int64_t step, bool failed);

  struct Order {
    std::uint64_t key = 0;
    bool end = false;
    bool failed = false;
  };
  /// Follower: the next order of `step`, or nothing after `timeout`.
  std::optional<Order> next(
      std::int64_t step,
      std::chrono::milliseconds timeout);

  int leader_rank() const {
    return group_.ranks().front();
  }

 private:
  struct Message {
    std::int64_t step = 0;
    Order order;
  };
  void send(const Message& message);

  comm::ProcessGroup& group_;
  std::unique_ptr<transport::Transport> transport_;
};

} // namespace tessera::runtime
