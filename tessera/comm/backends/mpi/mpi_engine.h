#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include "tessera/comm/backends/mpi/peer_messages.h"
#include "tessera/comm/backends/mpi/transfers.h"
#include "tessera/comm/engine.h"

namespace tessera::comm::mpi {

/// Collectives by pairwise nonblocking messages, for groups that span nodes.
///
/// Built on messages and not on MPI's own collectives for three reasons: sums
/// run in the order of ranks, so that they have the bits of the shared-memory
/// engine; f16 and bf16 need no operator of MPI's; and a wait knows which rank
/// it waits for. all_reduce is a reduce_scatter and an all_gather (bandwidth
/// optimal), small ones one exchange of everything; broadcast is a scatter and
/// an all_gather, of one rank of each node, which forwards to its neighbours;
/// reduce is a reduce_scatter and a gather, small ones one gather of everything.
class MpiEngine final : public Engine {
 public:
  /// Collective over `comm`, whose ranks are the group's; takes it over.
  /// `nodes`: a number for the node of each rank of the group.
  MpiEngine(GroupInfo info, MPI_Comm comm, std::vector<int> nodes);

  void run(const Operation& operation) override;
  void abandon(std::uint32_t started, const std::string& why) override;
  std::uint32_t recover() override;

 private:
  /// A failing rank sends this to the others: its own code has failed once more, after it had
  /// started so many operations.
  struct Notice {
    std::uint32_t started = 0;
    std::array<char, 512> why{};
  };
  struct Span {
    std::int64_t offset;
    std::int64_t length;
  };

  void all_reduce();
  void all_reduce_flat();
  void all_gather();
  void reduce_scatter();
  void all_to_all();
  void broadcast();
  void broadcast_among(const std::vector<int>& members, int root);
  void reduce_to_root();
  /// The root adds what the others send it whole: one step, and no byte twice.
  void reduce_chunk_at_root(std::int64_t start, std::int64_t length);
  /// Every rank adds a slice, and the root collects the sums: two steps, but the root receives
  /// less than two tensors, however many ranks there are.
  void reduce_chunk_by_slices(std::int64_t start, std::int64_t length);
  void barrier();

  Span cut(std::int64_t start, std::int64_t length, int owner) const;
  static Span cut(std::int64_t start, std::int64_t length, int owner, int parts);
  void reduce_own_slice(std::int64_t own_offset, std::int64_t length, std::byte* out);
  void exchange_slices(std::int64_t start, std::int64_t length);
  void share_slices(std::int64_t start, std::int64_t length);
  void keep_own(std::byte* own, const void* from, std::int64_t count) const;
  void send(Transfers& transfers, int peer, const void* from, std::int64_t count) const;
  void receive(Transfers& transfers, int peer, void* to, std::int64_t count) const;
  Transfers step();
  int tag() const;
  void wait(Transfers& transfers);
  std::byte* staging(std::size_t bytes);
  std::string operation_text() const;

  // Failures of user code (mpi_recovery.cpp).
  std::uint32_t failures_before(std::uint32_t sequence) const;
  void take_notices();
  void check_abandoned();
  [[noreturn]] void leave(const std::string& why);

  GroupInfo info_;
  PeerMessages messages_;
  std::vector<int> nodes_; // by rank in the group
  static constexpr int kCallTags = 1 << 15; // tags that tell calls of one caller apart
  std::uint32_t caller_tags_; // how many callers tags tell apart; as many as MPI has tags for
  std::uint32_t sequence_ = 0;
  Operation operation_;
  std::vector<std::byte> staging_;

  std::uint32_t failures_ = 0; // of this rank, before it started operation_
  std::vector<std::vector<Notice>> told_; // by rank: all that came
  mutable std::mutex mutex_; // guards what follows
  std::vector<std::uint32_t> abandoned_at_; // operations started by then
  std::optional<std::uint32_t> broken_at_; // last operation before it broke
  std::string broken_why_;
};

} // namespace tessera::comm::mpi
