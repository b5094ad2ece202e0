#include "tessera/comm/backends/shm/shm_engine.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/reduce_kernels.h"

namespace tessera::comm::shm {

namespace {

// While all ranks together bring no more than this, every rank reduces
// everything itself: more reading, but one wait instead of two.
constexpr std::size_t kFlatBytes = kSlotBytes;

constexpr std::size_t kCopyBlock = std::size_t{8} << 10;

// A peer that comes within this time costs no sleep and no wake-up.
constexpr std::chrono::microseconds kSpin{10};

std::size_t control_bytes(int size) {
  return sizeof(Header) + static_cast<std::size_t>(size) * sizeof(RankBlock);
}

constexpr std::size_t kPage = 4096;

std::size_t slots_offset(int size) {
  return (control_bytes(size) + kPage - 1) / kPage * kPage;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

} // namespace

std::size_t group_segment_bytes(int size) {
  return slots_offset(size) + static_cast<std::size_t>(size) * kDepth * kSlotBytes;
}

ShmEngine::ShmEngine(GroupInfo info, std::shared_ptr<const Segment> segment)
    : info_(std::move(info)),
      segment_(std::move(segment)),
      header_(reinterpret_cast<Header*>(segment_->data())),
      blocks_(reinterpret_cast<RankBlock*>(segment_->data() + sizeof(Header))),
      slots_(segment_->data() + slots_offset(info_.size())),
      sources_(static_cast<std::size_t>(info_.size())) {
  TESSERA_CHECK(segment_->size() >= group_segment_bytes(info_.size()));
}

void ShmEngine::run(const Operation& operation) {
  operation_ = operation;
  ++sequence_;
  failures_ = failures_before(sequence_);
  block(info_.rank).entered.store(sequence_, std::memory_order_release);
  const std::uint32_t end = base_ + count_rounds();
  std::uint32_t filled = base_;
  std::uint32_t reduced = base_;
  std::uint32_t drained = base_;
  while (drained != end) {
    check_running();
    check_whole();
    if (drained != reduced && drain_blocker(drained) < 0) {
      drain(drained++);
    } else if (reduced != filled && reduce_blocker(reduced) < 0) {
      reduce_slice(reduced++);
    } else if (filled != end && filled - drained < kDepth && fill_blocker(filled) < 0) {
      fill(filled++);
    } else if (drained != reduced) {
      const auto stage = has_reduce_stage() ? &RankBlock::reduced : &RankBlock::filled;
      if (const int peer = drain_blocker(drained); peer >= 0) {
        sleep_on(peer, stage, drained + 1);
      }
    } else if (reduced != filled) {
      if (const int peer = reduce_blocker(reduced); peer >= 0) {
        sleep_on(peer, &RankBlock::filled, reduced + 1);
      }
    } else if (const int peer = fill_blocker(filled); peer >= 0) {
      sleep_on(peer, &RankBlock::drained, filled + 1 - kDepth);
    }
  }
  base_ = end;
}

RankBlock& ShmEngine::block(int rank) const {
  return blocks_[rank];
}

std::byte* ShmEngine::slot(int rank, std::uint32_t round) const {
  return slots_ + (static_cast<std::size_t>(rank) * kDepth + round % kDepth) * kSlotBytes;
}

// ---- geometry -------------------------------------------------------------

bool ShmEngine::is_flat() const {
  return operation_.kind == Collective::kAllReduce &&
         operation_.bytes(operation_.count * info_.size()) <= kFlatBytes;
}

bool ShmEngine::has_reduce_stage() const {
  return operation_.kind == Collective::kReduce ||
         (operation_.kind == Collective::kAllReduce && !is_flat());
}

std::int64_t ShmEngine::slot_capacity() const {
  return static_cast<std::int64_t>(kSlotBytes / size_of(operation_.type));
}

std::int64_t ShmEngine::slice_capacity() const {
  const std::size_t slice = kSlotBytes / static_cast<std::size_t>(info_.size()) / kLine * kLine;
  return static_cast<std::int64_t>(slice / size_of(operation_.type));
}

std::uint32_t ShmEngine::count_rounds() const {
  std::int64_t per_round = slot_capacity();
  if (has_reduce_stage()) {
    per_round = slice_capacity() * info_.size();
  } else if (
      operation_.kind == Collective::kReduceScatter || operation_.kind == Collective::kAllToAll) {
    per_round = slice_capacity();
  }
  // One at least, so that an empty tensor is compared with the peers' too.
  return static_cast<std::uint32_t>(
      std::max<std::int64_t>(1, (operation_.count + per_round - 1) / per_round));
}

ShmEngine::Span ShmEngine::slice(std::uint32_t round, int owner) const {
  const auto index = static_cast<std::int64_t>(round - base_);
  const std::int64_t capacity = slice_capacity();
  if (!has_reduce_stage()) { // the slices were cut by the caller
    const std::int64_t offset = index * capacity;
    return {
        owner * operation_.count + offset,
        std::clamp<std::int64_t>(operation_.count - offset, 0, capacity)};
  }
  const std::int64_t start = index * capacity * info_.size();
  const std::int64_t rest = std::min(capacity * info_.size(), operation_.count - start);
  const auto line = static_cast<std::int64_t>(kLine / size_of(operation_.type));
  const std::int64_t even = (rest + info_.size() - 1) / info_.size();
  const std::int64_t length = (even + line - 1) / line * line;
  const std::int64_t begin = std::min(owner * length, rest);
  return {start + begin, std::min(begin + length, rest) - begin};
}

ShmEngine::Span ShmEngine::whole(std::uint32_t round) const {
  const std::int64_t offset = static_cast<std::int64_t>(round - base_) * slot_capacity();
  return {offset, std::min(slot_capacity(), operation_.count - offset)};
}

void ShmEngine::copy(void* to, const void* from, std::int64_t elements) const {
  if (elements > 0 && to != from) {
    std::memcpy(to, from, operation_.bytes(elements));
  }
}

// ---- stages ---------------------------------------------------------------

void ShmEngine::fill(std::uint32_t round) {
  fill_data(round);
  Notice& notice = block(info_.rank).notices[round % kDepth];
  notice.sequence = sequence_;
  notice.kind = static_cast<std::int32_t>(operation_.kind);
  notice.type = static_cast<std::int32_t>(operation_.type);
  notice.reduce = static_cast<std::int32_t>(operation_.reduce);
  notice.scale = operation_.scale;
  notice.root = operation_.root;
  notice.failures = failures_;
  notice.count = operation_.count;
  post(block(info_.rank).filled, round + 1);
}

void ShmEngine::fill_data(std::uint32_t round) {
  std::byte* mine = slot(info_.rank, round);
  switch (operation_.kind) {
    case Collective::kBarrier:
      return;
    case Collective::kBroadcast:
      if (info_.rank == operation_.root) {
        const Span span = whole(round);
        copy(mine, operation_.input_at(span.offset), span.length);
      }
      return;
    case Collective::kAllGather: {
      const Span span = whole(round);
      copy(mine, operation_.input_at(span.offset), span.length);
      return;
    }
    case Collective::kAllReduce:
      if (is_flat()) {
        copy(mine, operation_.input, operation_.count);
        return;
      }
      break;
    default:
      break;
  }
  // Sliced: what the others will reduce or take; my own slice I have already.
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer != info_.rank) {
      const Span span = slice(round, peer);
      copy(
          mine + operation_.bytes(peer * slice_capacity()),
          operation_.input_at(span.offset),
          span.length);
    }
  }
}

void ShmEngine::reduce_slice(std::uint32_t round) {
  if (!has_reduce_stage()) {
    return;
  }
  check_notices(round);
  const Span span = slice(round, info_.rank);
  const bool to_all = operation_.kind == Collective::kAllReduce;
  const bool result_is_mine = to_all || info_.rank == operation_.root;
  std::byte* shared = slot(info_.rank, round) +
                      operation_.bytes(static_cast<std::int64_t>(info_.rank) * slice_capacity());
  if (!to_all) {
    reduce_from_slots(round, span, 0, result_is_mine ? operation_.output_at(span.offset) : shared);
  } else {
    // In blocks, so that a result is copied while the first-level cache still
    // holds it.
    const auto step = static_cast<std::int64_t>(kCopyBlock / size_of(operation_.type));
    for (std::int64_t at = 0; at < span.length; at += step) {
      const Span part = {span.offset + at, std::min(step, span.length - at)};
      reduce_from_slots(round, part, at, operation_.output_at(part.offset));
      copy(shared + operation_.bytes(at), operation_.output_at(part.offset), part.length);
    }
  }
  post(block(info_.rank).reduced, round + 1);
}

void ShmEngine::reduce_from_slots(
    std::uint32_t round,
    Span span,
    std::int64_t in_slice,
    std::byte* out) {
  // My own data come from my tensor, the others' from their slots.
  const std::int64_t slice_start =
      is_flat() ? 0 : static_cast<std::int64_t>(info_.rank) * slice_capacity();
  for (int peer = 0; peer < info_.size(); ++peer) {
    sources_[static_cast<std::size_t>(peer)] =
        peer == info_.rank ? static_cast<const void*>(operation_.input_at(span.offset))
                           : slot(peer, round) + operation_.bytes(slice_start + in_slice);
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

void ShmEngine::drain(std::uint32_t round) {
  check_notices(round);
  drain_data(round);
  post(block(info_.rank).drained, round + 1);
}

void ShmEngine::drain_data(std::uint32_t round) {
  const int me = info_.rank;
  switch (operation_.kind) {
    case Collective::kBarrier:
      return;
    case Collective::kBroadcast: {
      if (me != operation_.root) {
        const Span span = whole(round);
        copy(operation_.output_at(span.offset), slot(operation_.root, round), span.length);
      }
      return;
    }
    case Collective::kAllGather: {
      const Span span = whole(round);
      for (int peer = 0; peer < info_.size(); ++peer) {
        const void* from = peer == me ? operation_.input_at(span.offset) : slot(peer, round);
        copy(operation_.output_at(peer * operation_.count + span.offset), from, span.length);
      }
      return;
    }
    case Collective::kReduceScatter: {
      const Span span = slice(round, me);
      reduce_from_slots(round, span, 0, operation_.output_at(span.offset - me * operation_.count));
      return;
    }
    case Collective::kAllToAll: {
      const Span span = slice(round, me);
      const std::int64_t offset = span.offset - me * operation_.count;
      for (int peer = 0; peer < info_.size(); ++peer) {
        const void* from = peer == me ? operation_.input_at(span.offset)
                                      : slot(peer, round) + operation_.bytes(me * slice_capacity());
        copy(operation_.output_at(peer * operation_.count + offset), from, span.length);
      }
      return;
    }
    case Collective::kAllReduce:
      if (is_flat()) {
        reduce_from_slots(round, {0, operation_.count}, 0, operation_.output_at(0));
        return;
      }
      break;
    case Collective::kReduce:
      if (me != operation_.root) {
        return;
      }
      break;
  }
  for (int peer = 0; peer < info_.size(); ++peer) {
    if (peer != me) {
      const Span span = slice(round, peer);
      copy(
          operation_.output_at(span.offset),
          slot(peer, round) + operation_.bytes(peer * slice_capacity()),
          span.length);
    }
  }
}

// ---- waiting --------------------------------------------------------------

int ShmEngine::first_behind(Counter RankBlock::*stage, std::uint32_t target) const {
  for (int peer = 0; peer < info_.size(); ++peer) {
    const auto value = (block(peer).*stage).value.load(std::memory_order_acquire);
    if (peer != info_.rank && !reached(value, target)) {
      return peer;
    }
  }
  return -1;
}

int ShmEngine::fill_blocker(std::uint32_t round) const {
  // The slot still holds what the round kDepth earlier put there.
  return first_behind(&RankBlock::drained, round + 1 - kDepth);
}

int ShmEngine::reduce_blocker(std::uint32_t round) const {
  return has_reduce_stage() ? first_behind(&RankBlock::filled, round + 1) : -1;
}

int ShmEngine::drain_blocker(std::uint32_t round) const {
  const int root = operation_.root;
  if (operation_.kind == Collective::kBroadcast) {
    const auto at_root = block(root).filled.value.load(std::memory_order_acquire);
    return info_.rank == root || reached(at_root, round + 1) ? -1 : root;
  }
  if (operation_.kind == Collective::kReduce && info_.rank != root) {
    return -1;
  }
  return first_behind(has_reduce_stage() ? &RankBlock::reduced : &RankBlock::filled, round + 1);
}

void ShmEngine::post(Counter& counter, std::uint32_t value) {
  // Sequentially consistent on both sides: either the sleeper sees the value
  // or we see the sleeper.
  counter.value.store(value);
  if (counter.sleepers.load() != 0) {
    wake_all(counter.value);
  }
}

void ShmEngine::sleep_on(int rank, Counter RankBlock::*stage, std::uint32_t target) {
  using Clock = std::chrono::steady_clock;
  Counter& counter = block(rank).*stage;
  const auto start = Clock::now();
  do {
    for (int i = 0; i < 16; ++i) {
      if (reached(counter.value.load(std::memory_order_acquire), target)) {
        return;
      }
      relax();
    }
    // The peer may be waiting for this very core.
    std::this_thread::yield();
  } while (Clock::now() - start < kSpin);
  const auto deadline = start + info_.timeout;
  while (true) {
    counter.sleepers.fetch_add(1);
    const std::uint32_t seen = counter.value.load();
    if (!reached(seen, target)) {
      wait_while_equal(counter.value, seen, kSleepPiece);
    }
    counter.sleepers.fetch_sub(1);
    if (reached(counter.value.load(std::memory_order_acquire), target)) {
      return;
    }
    check_running();
    check_whole();
    check_abandoned();
    if (Clock::now() >= deadline) {
      fail(
          str(operation_text(),
              ": rank ",
              info_.ranks[static_cast<std::size_t>(info_.rank)],
              " saw no progress for ",
              info_.timeout.count(),
              " ms; ",
              missing_text()));
    }
  }
}

// ---- errors ---------------------------------------------------------------

void ShmEngine::check_notices(std::uint32_t round) const {
  for (int peer = 0; peer < info_.size(); ++peer) {
    const RankBlock& other = block(peer);
    if (peer == info_.rank ||
        !reached(other.filled.value.load(std::memory_order_acquire), round + 1)) {
      continue;
    }
    const Notice& notice = other.notices[round % kDepth];
    if (notice.failures != failures_) {
      leave(notice.failures > failures_ ? peer : info_.rank);
    }
    const bool same = notice.sequence == sequence_ &&
                      notice.kind == static_cast<std::int32_t>(operation_.kind) &&
                      notice.type == static_cast<std::int32_t>(operation_.type) &&
                      notice.reduce == static_cast<std::int32_t>(operation_.reduce) &&
                      notice.scale == operation_.scale && notice.root == operation_.root &&
                      notice.count == operation_.count;
    if (!same) {
      fail(
          str(operation_text(),
              ": rank ",
              info_.ranks[static_cast<std::size_t>(peer)],
              " calls ",
              name_of(static_cast<Collective>(notice.kind)),
              " #",
              notice.sequence,
              " with ",
              notice.count,
              " elements of ",
              name_of(static_cast<DataType>(notice.type)),
              ", ",
              name_of(static_cast<ReduceOp>(notice.reduce)),
              ", scale ",
              notice.scale,
              ", root ",
              notice.root,
              "; all ranks must make the same calls in the same order"));
    }
  }
}

void ShmEngine::check_running() const {
  const std::uint32_t failed = header_->failed.load(std::memory_order_acquire);
  if (failed != 0) {
    throw CommError(
        str(operation_text(),
            ": rank ",
            info_.ranks[failed - 1],
            " has failed: ",
            header_->reason.data()));
  }
  if (cancelled()) {
    fail(
        str(operation_text(),
            ": rank ",
            info_.ranks[static_cast<std::size_t>(info_.rank)],
            " gave the group up after an error of its own"));
  }
}

void ShmEngine::fail(const std::string& reason) const {
  // The first to fail tells the others why.
  std::uint32_t nobody = 0;
  if (header_->failing.compare_exchange_strong(
          nobody, static_cast<std::uint32_t>(info_.rank) + 1)) {
    const std::size_t length = std::min(reason.size(), header_->reason.size() - 1);
    std::memcpy(header_->reason.data(), reason.data(), length);
    header_->reason[length] = '\0';
    header_->failed.store(static_cast<std::uint32_t>(info_.rank) + 1, std::memory_order_release);
  }
  throw CommError(reason);
}

std::string ShmEngine::operation_text() const {
  return str(
      name_of(operation_.kind),
      " #",
      sequence_,
      " of ",
      operation_.count,
      " elements of ",
      name_of(operation_.type),
      ", ",
      name_of(operation_.reduce),
      ", root ",
      operation_.root,
      " in ",
      info_.text());
}

std::string ShmEngine::missing_text() const {
  std::string missing;
  for (int peer = 0; peer < info_.size(); ++peer) {
    const std::uint32_t entered = block(peer).entered.load(std::memory_order_acquire);
    if (!reached(entered, sequence_)) {
      missing +=
          str(missing.empty() ? "" : ", ",
              "rank ",
              info_.ranks[static_cast<std::size_t>(peer)],
              " (began ",
              entered,
              " of ",
              sequence_,
              " operations)");
    }
  }
  return missing.empty() ? std::string("all ranks have arrived, but one stopped inside")
                         : "not arrived: " + missing;
}

} // namespace tessera::comm::shm
