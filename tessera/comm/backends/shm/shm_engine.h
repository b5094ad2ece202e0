#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/backends/shm/layout.h"
#include "tessera/comm/backends/shm/rounds.h"
#include "tessera/comm/engine.h"
#include "tessera/ipc/segment.h"

namespace tessera::comm::shm {

using SegmentPtr = std::shared_ptr<const ipc::Segment>;

/// Returns the size of the segment of a group of `size` ranks. The system gives pages when they are
/// first written, so small messages use few of them.
std::size_t group_segment_bytes(int size);

/// Collectives through memory that all ranks of the group map.
///
/// A message is cut into rounds. In each, a rank fills its slot with what others need, reduces its
/// own slice from all slots in the order of ranks, and drains the others' results; it does
/// whichever of these stages is possible, the most advanced first, and sleeps only when none is. So
/// ranks may be kDepth rounds apart, which keeps context switches few when ranks outnumber cores.
///
/// Every element is reduced by one rank and in rank order: the same bits on
/// all ranks and in every run.
class ShmEngine final : public Engine {
 public:
  /// `segment` is zero-filled at first and shared by the group's ranks.
  ShmEngine(GroupInfo info, SegmentPtr segment);

  void run(const Operation& operation) override;
  bool shares_memory() const override {
    return true;
  }
  void abandon(std::uint32_t started, const std::string& why) override;
  std::uint32_t recover() override;

 private:
  /// Rounds of which this rank has finished each stage.
  struct Progress {
    std::uint32_t filled;
    std::uint32_t reduced;
    std::uint32_t drained;
  };

  RankBlock& block(int rank) const;
  std::byte* slot(int rank, std::uint32_t round) const;
  std::byte* slice_in_slot(int rank, std::uint32_t round, int owner) const;
  std::uint32_t index_of(std::uint32_t round) const {
    return round - base_;
  }

  bool advance(Progress& progress, std::uint32_t end);
  void sleep_until_possible(const Progress& progress);

  void fill(std::uint32_t round);
  void fill_data(std::uint32_t round);
  void fill_slices(std::uint32_t round);
  void reduce_slice(std::uint32_t round);
  void drain(std::uint32_t round);
  void drain_data(std::uint32_t round);
  void drain_slices(std::uint32_t round);
  /// `span` of the tensor begins `in_slice` elements into this rank's slice.
  void reduce_from_slots(std::uint32_t round, Span span, std::int64_t in_slice, std::byte* out);
  void copy(void* to, const void* from, std::int64_t elements) const;

  // Waiting and errors (shm_waiting.cpp).
  int first_behind(ipc::Counter RankBlock::*stage, std::uint32_t target) const;
  int fill_blocker(std::uint32_t round) const;
  int reduce_blocker(std::uint32_t round) const;
  int drain_blocker(std::uint32_t round) const;
  void sleep_on(int rank, ipc::Counter RankBlock::*stage, std::uint32_t target);
  void check_notices(std::uint32_t round) const;
  void check_running() const;
  [[noreturn]] void fail(const std::string& reason) const;
  int global(int rank) const;
  std::string operation_text() const;
  std::string missing_text() const;

  // Failures of user code (shm_recovery.cpp).
  void check_whole() const;
  void check_abandoned() const;
  [[noreturn]] void leave(int origin) const;
  std::uint32_t failures_before(std::uint32_t sequence) const;
  void meet();

  GroupInfo info_;
  SegmentPtr segment_;
  GroupState* state_;
  RankBlock* blocks_;
  std::byte* slots_;
  std::vector<const void*> sources_; // of a reduction, by rank
  std::uint32_t sequence_ = 0; // operations begun
  std::uint32_t base_ = 0; // rounds of the operations before this one
  Operation operation_; // the one that runs
  Rounds rounds_; // of it
  std::uint32_t failures_ = 0; // of this rank, before it started that one
  std::uint32_t meetings_ = 0;
  mutable std::mutex mutex_;
  /// Operations started at each failure of this rank; guarded by mutex_.
  std::vector<std::uint32_t> abandoned_at_;
};

} // namespace tessera::comm::shm
