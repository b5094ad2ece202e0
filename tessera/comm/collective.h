#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

enum class ReduceOp { kSum, kMax, kMin };

enum class DataType { kF32, kF64, kF16, kBF16, kI32, kI64, kU8 };

enum class Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kBarrier
};

/// Units: bytes.
std::size_t size_of(DataType type);
/// "f32", "all_reduce", "sum" and so on.
std::string_view name_of(DataType type);
std::string_view name_of(Collective kind);
std::string_view name_of(ReduceOp reduce);

/// The name of what starts a collective, such as a module's path; "" where nobody says. Ranks whose
/// calls are alike in all but the caller would compute with each other's numbers.
struct Caller {
  std::array<char, 48> text{}; // the name's end, where it is longer; zeros behind it

  static Caller of(std::string_view name);
  std::string_view name() const;
  /// A number that is equal on all ranks of one job for equal names.
  std::uint32_t hash() const;
  bool operator==(const Caller&) const = default;
};

/// One collective in terms of raw memory; what an Engine executes.
///
/// `count` is the number of elements of the whole tensor for all_reduce,
/// broadcast and reduce, and of one slice (1 / size of the longer side) for
/// all_gather, reduce_scatter and all_to_all.
struct Operation {
  Collective kind = Collective::kBarrier;
  DataType type = DataType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  double scale = 1; // of a sum, before it is rounded
  int root = 0; // rank in the group
  const void* input = nullptr;
  void* output = nullptr; // equals input for the in-place operations
  std::int64_t count = 0;
  Caller caller; // must be the same on all ranks

  /// These return the size of so many elements, and the address of an element of input or output.
  /// Units: bytes.
  std::size_t bytes(std::int64_t elements) const;
  const std::byte* input_at(std::int64_t element) const;
  std::byte* output_at(std::int64_t element) const;

  /// Returns whether two ranks mean the same call. Memory is not compared, since each rank has its
  /// own.
  bool is_same_call(const Operation& other) const;
  /// "all_reduce #2 of 10 elements of f32, sum, scale 1, root 0 for 'h.0.mlp'"; `sequence` counts
  /// the group's operations.
  std::string text(std::uint32_t sequence) const;
};

/// Returns the payload that leaves rank `rank` of `size` when `operation` runs, by the closed
/// formulas of docs/algorithms.md. Units: bytes.
std::int64_t traffic_bytes(const Operation& operation, int size, int rank);

/// Says who takes part, for engines and their error messages.
struct GroupInfo {
  std::string name;
  std::vector<int> ranks; // global, ascending
  int rank = 0; // position of this rank in `ranks`
  std::chrono::milliseconds timeout{0};

  int size() const {
    return static_cast<int>(ranks.size());
  }
  /// "group 'dp' (ranks 0 2 4)"
  std::string text() const;
};

} // namespace tessera::comm
