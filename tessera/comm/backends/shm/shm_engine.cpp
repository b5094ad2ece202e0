#include "tessera/comm/backends/shm/shm_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/reduce_kernels.h"

namespace tessera::comm::shm {

namespace {

constexpr std::size_t kCopyBlock = std::size_t{8} << 10;
constexpr std::size_t kPage = 4096;

std::size_t slots_offset(int size) {
  const std::size_t control =
      sizeof(GroupState) + static_cast<std::size_t>(size) * sizeof(RankBlock);
  return (control + kPage - 1) / kPage * kPage;
}

} // namespace

std::size_t group_segment_bytes(int size) {
  return slots_offset(size) + static_cast<std::size_t>(size) * kDepth * kSlotBytes;
}

ShmEngine::ShmEngine(GroupInfo info, SegmentPtr segment)
    : info_(std::move(info)),
      segment_(std::move(segment)),
      state_(reinterpret_cast<GroupState*>(segment_->data())),
      blocks_(reinterpret_cast<RankBlock*>(segment_->data() + sizeof(GroupState))),
      slots_(segment_->data() + slots_offset(info_.size())),
      sources_(static_cast<std::size_t>(info_.size())) {
  TESSERA_CHECK(segment_->size() >= group_segment_bytes(info_.size()));
}

void ShmEngine::run(const Operation& operation) {
  operation_ = operation;
  rounds_ = Rounds(operation, info_.size());
  ++sequence_;
  failures_ = failures_before(sequence_);
  block(info_.rank).entered.store(sequence_, std::memory_order_release);
  const std::uint32_t end = base_ + rounds_.count();
  Progress progress{base_, base_, base_};
  while (progress.drained != end) {
    check_running();
    check_whole();
    if (!advance(progress, end)) {
      sleep_until_possible(progress);
    }
  }
  base_ = end;
}

/// Does the most advanced stage that is possible now; returns false when none is.
bool ShmEngine::advance(Progress& progress, std::uint32_t end) {
  auto& [filled, reduced, drained] = progress;
  if (drained != reduced && drain_blocker(drained) < 0) {
    drain(drained++);
  } else if (reduced != filled && reduce_blocker(reduced) < 0) {
    reduce_slice(reduced++);
  } else if (filled != end && filled - drained < kDepth && fill_blocker(filled) < 0) {
    fill(filled++);
  } else {
    return false;
  }
  return true;
}

/// Sleeps on the peer that holds up the most advanced stage.
void ShmEngine::sleep_until_possible(const Progress& progress) {
  const auto& [filled, reduced, drained] = progress;
  if (drained != reduced) {
    const auto stage = rounds_.has_reduce_stage() ? &RankBlock::reduced : &RankBlock::filled;
    sleep_on(drain_blocker(drained), stage, drained + 1);
  } else if (reduced != filled) {
    sleep_on(reduce_blocker(reduced), &RankBlock::filled, reduced + 1);
  } else {
    sleep_on(fill_blocker(filled), &RankBlock::drained, filled + 1 - kDepth);
  }
}

RankBlock& ShmEngine::block(int rank) const {
  return blocks_[rank];
}

std::byte* ShmEngine::slot(int rank, std::uint32_t round) const {
  return slots_ + (static_cast<std::size_t>(rank) * kDepth + round % kDepth) * kSlotBytes;
}

std::byte* ShmEngine::slice_in_slot(int rank, std::uint32_t round, int owner) const {
  return slot(rank, round) + operation_.bytes(rounds_.place_of_slice(owner));
}

void ShmEngine::copy(void* to, const void* from, std::int64_t elements) const {
  if (elements > 0 && to != from) {
    std::memcpy(to, from, operation_.bytes(elements));
  }
}

// ---- fill -----------------------------------------------------------------

void ShmEngine::fill(std::uint32_t round) {
  fill_data(round);
  block(info_.rank).notices[round % kDepth] = {sequence_, failures_, operation_};
  block(info_.rank).filled.post(round + 1);
}

void ShmEngine::fill_data(std::uint32_t round) {
  std::byte* mine = slot(info_.rank, round);
  switch (operation_.kind) {
    case Collective::kBarrier:
      return;
    case Collective::kBroadcast:
      if (info_.rank != operation_.root) {
        return;
      }
      [[fallthrough]];
    case Collective::kAllGather: {
      const Span span = rounds_.whole(index_of(round));
      return copy(mine, operation_.input_at(span.offset), span.length);
    }
    case Collective::kAllReduce:
      if (rounds_.is_flat()) {
        return copy(mine, operation_.input, operation_.count);
      }
      return fill_slices(round);
    case Collective::kReduce:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return fill_slices(round);
  }
}

/// Copies what the other ranks will reduce or take; a rank has its own slice already.
void ShmEngine::fill_slices(std::uint32_t round) {
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer != info_.rank) {
      const Span span = rounds_.slice(index_of(round), peer);
      copy(slice_in_slot(info_.rank, round, peer), operation_.input_at(span.offset), span.length);
    }
  }
}

// ---- reduce ---------------------------------------------------------------

void ShmEngine::reduce_slice(std::uint32_t round) {
  if (!rounds_.has_reduce_stage()) {
    return;
  }
  check_notices(round);
  const Span span = rounds_.slice(index_of(round), info_.rank);
  std::byte* shared = slice_in_slot(info_.rank, round, info_.rank);
  if (operation_.kind == Collective::kReduce) {
    const bool is_root = info_.rank == operation_.root;
    reduce_from_slots(round, span, 0, is_root ? operation_.output_at(span.offset) : shared);
  } else {
    // The reduction runs in blocks, so that a result is copied while the first-level cache still
    // holds it.
    const auto step = static_cast<std::int64_t>(kCopyBlock / size_of(operation_.type));
    for (std::int64_t at = 0; at < span.length; at += step) {
      const Span part = {span.offset + at, std::min(step, span.length - at)};
      reduce_from_slots(round, part, at, operation_.output_at(part.offset));
      copy(shared + operation_.bytes(at), operation_.output_at(part.offset), part.length);
    }
  }
  block(info_.rank).reduced.post(round + 1);
}

void ShmEngine::reduce_from_slots(
    std::uint32_t round,
    Span span,
    std::int64_t in_slice,
    std::byte* out) {
  // A rank's own data come from its tensor, the others' from their slots.
  for (int peer = 0; peer < info_.size(); ++peer) {
    const std::byte* in_slot =
        rounds_.is_flat() ? slot(peer, round) : slice_in_slot(peer, round, info_.rank);
    sources_[static_cast<std::size_t>(peer)] = peer == info_.rank
                                                   ? operation_.input_at(span.offset)
                                                   : in_slot + operation_.bytes(in_slice);
  }
  reduce(
      operation_.type,
      operation_.reduce,
      out,
      sources_.data(),
      info_.size(),
      span.length,
      operation_.scale);
}

// ---- drain ----------------------------------------------------------------

void ShmEngine::drain(std::uint32_t round) {
  check_notices(round);
  drain_data(round);
  block(info_.rank).drained.post(round + 1);
}

void ShmEngine::drain_data(std::uint32_t round) {
  const int me = info_.rank;
  const Span whole = rounds_.whole(index_of(round));
  switch (operation_.kind) {
    case Collective::kBarrier:
      return;
    case Collective::kBroadcast:
      if (me != operation_.root) {
        copy(operation_.output_at(whole.offset), slot(operation_.root, round), whole.length);
      }
      return;
    case Collective::kAllGather:
      for (int peer = 0; peer < info_.size(); ++peer) {
        const void* from = peer == me ? operation_.input_at(whole.offset) : slot(peer, round);
        copy(operation_.output_at(peer * operation_.count + whole.offset), from, whole.length);
      }
      return;
    case Collective::kReduceScatter: {
      const Span span = rounds_.slice(index_of(round), me);
      return reduce_from_slots(
          round, span, 0, operation_.output_at(span.offset - me * operation_.count));
    }
    case Collective::kAllToAll: {
      const Span span = rounds_.slice(index_of(round), me);
      const std::int64_t offset = span.offset - me * operation_.count;
      for (int peer = 0; peer < info_.size(); ++peer) {
        const void* from =
            peer == me ? operation_.input_at(span.offset) : slice_in_slot(peer, round, me);
        copy(operation_.output_at(peer * operation_.count + offset), from, span.length);
      }
      return;
    }
    case Collective::kAllReduce:
      if (rounds_.is_flat()) {
        return reduce_from_slots(round, {0, operation_.count}, 0, operation_.output_at(0));
      }
      return drain_slices(round);
    case Collective::kReduce:
      if (me == operation_.root) {
        drain_slices(round);
      }
      return;
  }
}

/// Copies what the other ranks have reduced.
void ShmEngine::drain_slices(std::uint32_t round) {
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer != info_.rank) {
      const Span span = rounds_.slice(index_of(round), peer);
      copy(operation_.output_at(span.offset), slice_in_slot(peer, round, peer), span.length);
    }
  }
}

} // namespace tessera::comm::shm
