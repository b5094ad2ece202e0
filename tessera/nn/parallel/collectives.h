#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/collective.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/shard.h"

// What primitives.h and the built-in layers are made of: one collective each,
// without autograd, for slices that need not be equal. Slices of unequal length
// are padded to the longest on their way, zeros that count as traffic. With one
// rank each returns its argument; under shapes_only a result has the right
// sizes and nothing else.
// Collective over `ranks`. Threads: those that run user code.
namespace tessera::nn {

/// The ranks of a collective in the order in which their slices lie: those of
/// the TP_GROUP, or the row or column of a mesh that this rank is in.
class Ranks {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): the usual case
  Ranks(const TensorParallel& parallel)
      : group_(parallel.group), shapes_only_(parallel.shapes_only), caller_(present_module()) {}
  /// `order`: the rank in `group` of each position. `owner` keeps the group.
  Ranks(
      comm::ProcessGroup& group,
      const std::vector<int>& order,
      bool shapes_only,
      std::shared_ptr<const void> owner = {});

  comm::ProcessGroup& group() const {
    return *group_;
  }
  bool shapes_only() const {
    return shapes_only_;
  }
  /// The module in whose forward this was made.
  const comm::Caller& caller() const {
    return caller_;
  }
  int size() const;
  /// The position of this rank.
  int rank() const;
  /// The rank in the group of a position.
  int in_group(int position) const {
    return order_.empty() ? position : order_[static_cast<std::size_t>(position)];
  }
  /// Returns whether positions are the ranks in the group.
  bool in_order() const {
    return order_.empty();
  }

 private:
  comm::ProcessGroup* group_;
  bool shapes_only_;
  comm::Caller caller_;
  std::vector<int> order_; // empty: positions are ranks
  std::shared_ptr<const void> owner_;
};

/// Exchanges numbers: `own` has the same length on all ranks; entry k of the
/// result holds number k of every rank, by rank.
/// Cost: one all-gather of 8 bytes a number.
std::vector<Lengths> exchange_numbers(const Ranks& ranks, const std::vector<std::int64_t>& own);
/// The same for one number.
Lengths exchange_length(const Ranks& ranks, std::int64_t own);

/// Reduction over the ranks, in place on a contiguous tensor.
void all_reduce(
    const Ranks& ranks,
    const at::Tensor& tensor,
    comm::ReduceOp operation = comm::ReduceOp::kSum);

/// Joins the ranks' tensors along `dim`; rank r's is lengths[r] long there.
at::Tensor
gather(const Ranks& ranks, const at::Tensor& tensor, std::int64_t dim, const Lengths& lengths);

/// Sum over the ranks, of which this rank keeps its slice of `dim`.
at::Tensor reduce_scatter(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);

/// Slice r of `split_dim` (split_lengths[r] long) goes to rank r; what came
/// from rank r (merge_lengths[r] long along `merge_dim`) is joined in the order
/// of ranks. The two dimensions differ.
at::Tensor exchange(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths);

/// The result of a collective in flight; call it once, it waits. The tensors
/// it works on must not be touched before.
using Pending = std::function<at::Tensor()>;

/// The same collectives, started: the caller computes something else before it
/// asks for the result.
Pending start_all_reduce(const Ranks& ranks, const at::Tensor& tensor);
Pending start_reduce_scatter(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);
Pending start_exchange(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths);

// For layers that lay out their operands by rank themselves and so save the
// copies: blocks_n... has one block for each rank in front, all of one size.

/// [n, ...] -> [...], of the TP_GROUP: sum over the ranks of the blocks meant for this rank.
at::Tensor reduce_scatter_blocks(const Ranks& ranks, const at::Tensor& blocks);
/// [...] -> [n, ...].
at::Tensor gather_blocks(const Ranks& ranks, const at::Tensor& block);

} // namespace tessera::nn
