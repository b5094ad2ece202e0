#pragma once

#include <cstdint>

#include "tessera/comm/collective.h"

namespace tessera::comm::shm {

/// A part of a tensor. Units: elements.
struct Span {
  std::int64_t offset;
  std::int64_t length;
};

/// How an operation of a group of `size` ranks is cut into rounds: which part of
/// the tensor a rank's slot holds in each. Pure functions of the operation.
class Rounds {
 public:
  Rounds() = default;
  Rounds(const Operation& operation, int size) : operation_(operation), size_(size) {}

  /// Returns whether the tensor is so small that every rank reduces all of it itself, which reads
  /// more but waits once instead of twice.
  bool is_flat() const;
  /// Returns whether ranks reduce slices that others then read.
  bool has_reduce_stage() const;
  /// At least one round, so that an empty tensor is compared with the peers' too.
  std::uint32_t count() const;

  /// Returns where a slot holds the slice of rank `owner`. Units: elements of the slot.
  std::int64_t place_of_slice(int owner) const {
    return owner * slice_capacity();
  }
  /// Returns which part of the tensor the slice of rank `owner` is in round `index`.
  Span slice(std::uint32_t index, int owner) const;
  /// Returns which part of the tensor round `index` moves, where slots hold one piece.
  Span whole(std::uint32_t index) const;

 private:
  std::int64_t slot_capacity() const;
  std::int64_t slice_capacity() const;

  Operation operation_;
  int size_ = 1;
};

} // namespace tessera::comm::shm
