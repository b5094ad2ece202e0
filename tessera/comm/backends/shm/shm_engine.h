#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/collective.h"
#include "tessera/comm/recoverable_engine.h"
#include "tessera/comm/shared_memory/control.h"
#include "tessera/comm/shared_memory/segment.h"

namespace tessera::comm::shm {

/// Size of the segment of a group of `size` ranks. Pages are given when first
/// written, so small messages use few of them.
std::size_t group_segment_bytes(int size);

/// Collectives through memory that all ranks of the group map.
///
/// A message is cut into rounds. In each, a rank fills its slot with what
/// others need, reduces its own slice from all slots in the order of ranks,
/// and drains the others' results; it does whichever of these stages is
/// possible, the most advanced first, and sleeps only when none is. Ranks may
/// so be kDepth rounds apart, which keeps switches few when ranks outnumber
/// cores.
///
/// Every element is reduced by one rank and in rank order: the same bits on
/// all ranks and in every run.
class ShmEngine final : public RecoverableEngine {
 public:
  /// `segment` is zero-filled at first and shared by the group's ranks.
  ShmEngine(GroupInfo info, std::shared_ptr<const Segment> segment);

  void run(const Operation& operation) override;
  bool shares_memory() const override {
    return true;
  }
  void abandon(std::uint32_t started, const std::string& why) override;
  std::uint32_t recover() override;

 private:
  /// Where a slice of a round lies in the full tensor. Units: elements.
  struct Span {
    std::int64_t offset;
    std::int64_t length;
  };

  RankBlock& block(int rank) const;
  std::byte* slot(int rank, std::uint32_t round) const;

  bool is_flat() const;
  bool has_reduce_stage() const;
  std::uint32_t count_rounds() const;
  std::int64_t slice_capacity() const;
  std::int64_t slot_capacity() const;
  Span slice(std::uint32_t round, int owner) const;
  Span whole(std::uint32_t round) const;

  void fill(std::uint32_t round);
  void fill_data(std::uint32_t round);
  void reduce_slice(std::uint32_t round);
  void drain(std::uint32_t round);
  void drain_data(std::uint32_t round);
  /// `span` of the tensor begins `in_slice` elements into this rank's slice.
  void reduce_from_slots(std::uint32_t round, Span span, std::int64_t in_slice, std::byte* out);
  void copy(void* to, const void* from, std::int64_t elements) const;

  int first_behind(Counter RankBlock::*stage, std::uint32_t target) const;
  int fill_blocker(std::uint32_t round) const;
  int reduce_blocker(std::uint32_t round) const;
  int drain_blocker(std::uint32_t round) const;
  void post(Counter& counter, std::uint32_t value);
  void sleep_on(int rank, Counter RankBlock::*stage, std::uint32_t target);
  void check_notices(std::uint32_t round) const;
  void check_running() const;
  void check_whole() const;
  void check_abandoned() const;
  [[noreturn]] void leave(int origin) const;
  std::uint32_t failures_before(std::uint32_t sequence) const;
  void meet();
  [[noreturn]] void fail(const std::string& reason) const;
  std::string operation_text() const;
  std::string missing_text() const;

  GroupInfo info_;
  std::shared_ptr<const Segment> segment_;
  Header* header_;
  RankBlock* blocks_;
  std::byte* slots_;
  std::vector<const void*> sources_; // of a reduction, by rank
  std::uint32_t sequence_ = 0; // operations begun
  std::uint32_t base_ = 0; // rounds of the operations before this one
  Operation operation_; // the one that runs
  std::uint32_t failures_ = 0; // of this rank, before it started that one
  std::uint32_t meetings_ = 0;
  mutable std::mutex mutex_;
  /// Operations started at each failure of this rank; guarded by mutex_.
  std::vector<std::uint32_t> abandoned_at_;
};

} // namespace tessera::comm::shm
