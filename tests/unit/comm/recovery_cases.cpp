// Ranks whose own code fails between two collectives: their peers are told, and
// all go on together after `recover`.
#include "recovery_cases.h"

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/peer_failed.h"
#include "tessera/comm/process_group.h"

namespace tessera::comm::conformance {

namespace {

constexpr const char* kWhy = "rank 1, a layer: no such token";
// More than the four rounds that a rank may be ahead of the others.
constexpr std::int64_t kMany = 1500000;

ProcessGroupPtr all_of(World& world) {
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return world.new_group("all", all);
}

void require_failed(const std::function<void()>& run) {
  std::string found = "nothing was thrown";
  try {
    run();
  } catch (const PeerFailed& error) {
    found = error.what();
  }
  require(found == kWhy, found);
}

/// Sums that show whether all ranks are in one operation.
void require_sums(ProcessGroup& group, int from) {
  for (int i = from; i < from + 5; ++i) {
    for (const std::int64_t count : {std::int64_t{3}, kMany}) {
      const auto x = torch::full({count}, i + group.rank());
      group.all_reduce(x);
      const int wanted = group.size() * i + group.size() * (group.size() - 1) / 2;
      require(x.eq(wanted).all().item<bool>(), str("sums of turn ", i));
    }
  }
  group.barrier();
}

void one_rank_fails(World& world) {
  const ProcessGroupPtr owner = all_of(world);
  ProcessGroup& group = *owner;
  for (int turn = 0; turn < 3; ++turn) {
    require_sums(group, turn);
    if (group.rank() == 1) {
      group.abandon(kWhy);
    } else {
      // The first may be one whose root never waits.
      require_failed([&] {
        for (int i = 0; i < 10; ++i) {
          group.broadcast(torch::zeros({kMany}), 0);
        }
      });
      require_failed([&] { group.barrier(); });
      require_failed([&] { group.barrier_async()->wait(); });
      group.abandon(kWhy); // as its own step ends by that
    }
    group.recover();
  }
  require_sums(group, 9);
}

void what_was_started_before_a_failure_ends(World& world) {
  const ProcessGroupPtr owner = all_of(world);
  ProcessGroup& group = *owner;
  const auto x = torch::ones({kMany});
  const auto y = torch::ones({kMany});
  const WorkPtr first = group.all_reduce_async(x, ReduceOp::kSum);
  const WorkPtr second = group.all_reduce_async(y, ReduceOp::kSum);
  if (group.rank() == 1) {
    group.abandon(kWhy);
  } else {
    const WorkPtr third = group.barrier_async();
    first->wait();
    second->wait();
    require(y.eq(group.size()).all().item<bool>(), "the second operation");
    require_failed([&] { third->wait(); });
  }
  group.recover();
  require_sums(group, 1);
}

void ranks_that_fail_together_go_on(World& world) {
  const ProcessGroupPtr owner = all_of(world);
  ProcessGroup& group = *owner;
  require_sums(group, 0);
  group.abandon(kWhy);
  require_sums(group, 1);
  group.abandon(kWhy);
  require_sums(group, 2);
  group.recover();
  require_sums(group, 3);
}

void one_that_goes_on_alone_fails_too(World& world) {
  const ProcessGroupPtr owner = all_of(world);
  ProcessGroup& group = *owner;
  require_sums(group, 0);
  if (group.rank() == 1) {
    group.abandon(kWhy);
  }
  require_failed([&] {
    for (int i = 0; i < 3; ++i) {
      group.all_reduce(torch::ones({kMany}));
    }
  });
  // As a step does for its task and for itself; frees rank 1 from messages.
  if (group.rank() != 1) {
    group.abandon(kWhy);
    group.abandon(kWhy);
  }
  group.recover();
  require_sums(group, 1);
}

} // namespace

const std::vector<Case>& recovery_cases() {
  static const std::vector<Case> cases = {
      {"one_rank_fails", 2, one_rank_fails},
      {"what_was_started_before_a_failure_ends", 2, what_was_started_before_a_failure_ends},
      {"ranks_that_fail_together_go_on", 2, ranks_that_fail_together_go_on},
      {"one_that_goes_on_alone_fails_too", 2, one_that_goes_on_alone_fails_too},
  };
  return cases;
}

} // namespace tessera::comm::conformance
