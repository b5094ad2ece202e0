#include "tessera/nn/parallel/collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/caller.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/parallel/skipped.h"

namespace tessera::nn {

namespace {

bool equal(const Lengths& lengths) {
  return std::all_of(lengths.begin(), lengths.end(), [&](std::int64_t length) {
    return length == lengths.front();
  });
}

std::int64_t longest(const Lengths& lengths) {
  return *std::max_element(lengths.begin(), lengths.end());
}

std::int64_t total(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

/// Returns the number of elements in front of `dim`. With 1 slices of `dim` lie one
/// after the other in memory.
std::int64_t outer(at::IntArrayRef sizes, std::int64_t dim) {
  std::int64_t count = 1;
  for (std::int64_t d = 0; d < dim; ++d) {
    count *= sizes[d];
  }
  return count;
}

std::vector<std::int64_t> with_size(at::IntArrayRef sizes, std::int64_t dim, std::int64_t size) {
  std::vector<std::int64_t> result = sizes.vec();
  result[dim] = size;
  return result;
}

std::vector<std::int64_t> in_front(std::int64_t first, at::IntArrayRef sizes) {
  std::vector<std::int64_t> result{first};
  result.insert(result.end(), sizes.begin(), sizes.end());
  return result;
}

/// Padding is zeroed so that sums never meet what was in memory before.
at::Tensor blocks_for(const at::Tensor& like, const std::vector<std::int64_t>& sizes, bool padded) {
  return padded ? at::zeros(sizes, like.options()) : at::empty(sizes, like.options());
}

void check_lengths(
    const char* what,
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths,
    bool whole) {
  const std::int64_t expected = whole ? total(lengths) : lengths[ranks.rank()];
  if (static_cast<int>(lengths.size()) != ranks.size() || tensor.size(dim) != expected) {
    throw ShapeError(tessera::str(
        what,
        " in group '",
        ranks.group().name(),
        "' on tp_rank ",
        ranks.rank(),
        ": dimension ",
        dim,
        " of a tensor of sizes ",
        tensor.sizes(),
        " should be ",
        expected));
  }
}

/// Copies slice r of `dim` to the front of the block of position r.
void spread(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths,
    const at::Tensor& blocks) {
  std::int64_t start = 0;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    blocks.select(0, ranks.in_group(static_cast<int>(r)))
        .narrow(dim, 0, lengths[r])
        .copy_(tensor.narrow(dim, start, lengths[r]));
    start += lengths[r];
  }
}

/// The reverse: joins the fronts of the blocks along `dim`.
at::Tensor
join(const Ranks& ranks, const at::Tensor& blocks, std::int64_t dim, const Lengths& lengths) {
  std::vector<at::Tensor> parts;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    parts.push_back(
        blocks.select(0, ranks.in_group(static_cast<int>(r))).narrow(dim, 0, lengths[r]));
  }
  return at::cat(parts, dim);
}

/// Reorders blocks by rank in the group to blocks by position.
at::Tensor by_position(const Ranks& ranks, const at::Tensor& blocks) {
  if (ranks.in_order()) {
    return blocks;
  }
  std::vector<at::Tensor> ordered;
  for (int r = 0; r < ranks.size(); ++r) {
    ordered.push_back(blocks.select(0, ranks.in_group(r)));
  }
  return at::stack(ordered);
}

at::Tensor shaped(const at::Tensor& like, std::vector<std::int64_t> sizes) {
  return like.is_meta() ? at::empty(sizes, like.options()) : at::zeros(sizes, like.options());
}

/// Returns the tensor with data. A meta tensor may be the placeholder of a received one (fast
/// mode), whose data every operator gets but no collective does; its alias has them.
at::Tensor with_data(const at::Tensor& tensor) {
  return tensor.is_meta() ? tensor.alias() : tensor;
}

/// Waits and keeps the operands alive until then.
Pending
after(comm::WorkPtr work, std::vector<at::Tensor> operands, std::function<at::Tensor()> finish) {
  return [work = std::move(work), operands = std::move(operands), finish = std::move(finish)] {
    work->wait();
    return finish();
  };
}

Pending ready(at::Tensor tensor) {
  return [tensor = std::move(tensor)] { return tensor; };
}

Pending begin_reduce_scatter(
    const Ranks& ranks,
    const at::Tensor& given,
    std::int64_t dim,
    const Lengths& lengths,
    bool in_background) {
  if (ranks.size() == 1) {
    return ready(given);
  }
  const at::Tensor tensor = with_data(given);
  check_lengths("reduce_scatter", ranks, tensor, dim, lengths, true);
  const std::int64_t own = lengths[ranks.rank()];
  if (ranks.shapes_only()) {
    tell_skipped("reduce_scatter", ranks.size(), tensor);
    return ready(shaped(tensor, with_size(tensor.sizes(), dim, own)));
  }
  at::Tensor input = tensor.contiguous();
  const auto block = with_size(tensor.sizes(), dim, longest(lengths));
  if (!equal(lengths) || outer(tensor.sizes(), dim) != 1 || !ranks.in_order()) {
    input = blocks_for(tensor, in_front(ranks.size(), block), !equal(lengths));
    spread(ranks, tensor, dim, lengths, input);
  }
  const at::Tensor output = at::empty(block, tensor.options());
  auto finish = [output, dim, own] {
    return output.size(dim) == own ? output : output.narrow(dim, 0, own).contiguous();
  };
  const comm::CallerScope caller(ranks.caller());
  if (!in_background) {
    ranks.group().reduce_scatter(output, input);
    return ready(finish());
  }
  return after(
      ranks.group().reduce_scatter_async(output, input, comm::ReduceOp::kSum),
      {output, input},
      std::move(finish));
}

Pending begin_exchange(
    const Ranks& ranks,
    const at::Tensor& given,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths,
    bool in_background) {
  if (ranks.size() == 1) {
    return ready(given);
  }
  const at::Tensor tensor = with_data(given);
  check_lengths("all_to_all", ranks, tensor, split_dim, split_lengths, true);
  check_lengths("all_to_all", ranks, tensor, merge_dim, merge_lengths, false);
  const std::int64_t own = split_lengths[ranks.rank()];
  const auto one = with_size(tensor.sizes(), split_dim, own);
  const auto merged = with_size(one, merge_dim, total(merge_lengths));
  if (ranks.shapes_only()) {
    tell_skipped("all_to_all", ranks.size(), tensor);
    return ready(shaped(tensor, merged));
  }
  const bool even = equal(split_lengths) && equal(merge_lengths);
  const auto block = in_front(
      ranks.size(),
      with_size(
          with_size(tensor.sizes(), split_dim, longest(split_lengths)),
          merge_dim,
          longest(merge_lengths)));
  at::Tensor input = tensor.contiguous();
  if (!even || outer(tensor.sizes(), split_dim) != 1 || !ranks.in_order()) {
    input = blocks_for(tensor, block, !even);
    const std::int64_t length = tensor.size(merge_dim);
    spread(ranks, tensor, split_dim, split_lengths, input.narrow(merge_dim + 1, 0, length));
  }
  const at::Tensor output = at::empty(block, tensor.options());
  auto finish = [=] {
    if (even && outer(one, merge_dim) == 1 && ranks.in_order()) {
      return output.view(merged);
    }
    return join(ranks, output.narrow(split_dim + 1, 0, own), merge_dim, merge_lengths);
  };
  const comm::CallerScope caller(ranks.caller());
  if (!in_background) {
    ranks.group().all_to_all(output, input);
    return ready(finish());
  }
  return after(ranks.group().all_to_all_async(output, input), {output, input}, std::move(finish));
}

} // namespace

Ranks::Ranks(
    comm::ProcessGroup& group,
    const std::vector<int>& order,
    bool shapes_only,
    std::shared_ptr<const void> owner)
    : group_(&group),
      shapes_only_(shapes_only),
      caller_(present_module()),
      owner_(std::move(owner)) {
  if (!std::is_sorted(order.begin(), order.end())) {
    order_ = order;
  }
}

int Ranks::size() const {
  return group_ == nullptr ? 1 : group_->size();
}

int Ranks::rank() const {
  if (group_ == nullptr || in_order()) {
    return group_ == nullptr ? 0 : group_->rank();
  }
  return static_cast<int>(std::find(order_.begin(), order_.end(), group_->rank()) - order_.begin());
}

std::vector<Lengths> exchange_numbers(const Ranks& ranks, const std::vector<std::int64_t>& own) {
  const auto count = static_cast<std::int64_t>(own.size());
  const int size = ranks.size();
  std::vector<Lengths> numbers;
  if (size == 1 || ranks.shapes_only()) {
    if (size > 1) {
      SkippedWork work;
      work.operation = "all_gather";
      work.ranks = size;
      work.bytes = 8 * static_cast<double>(count);
      work.has_adjoint = false;
      tell_skipped(work);
    }
    for (const std::int64_t number : own) {
      numbers.emplace_back(size, number);
    }
    return numbers;
  }
  // Lengths are exchanged on the host, wherever the tensors are.
  const at::Tensor input = at::empty({count}, at::kLong);
  std::copy(own.begin(), own.end(), input.data_ptr<std::int64_t>());
  const at::Tensor output = at::empty({size, count}, at::kLong);
  const comm::CallerScope caller(ranks.caller());
  ranks.group().all_gather(output, input);
  const auto* values = output.data_ptr<std::int64_t>();
  for (std::int64_t k = 0; k < count; ++k) {
    Lengths lengths;
    for (int r = 0; r < size; ++r) {
      lengths.push_back(values[ranks.in_group(r) * count + k]);
    }
    numbers.push_back(std::move(lengths));
  }
  return numbers;
}

Lengths exchange_length(const Ranks& ranks, std::int64_t own) {
  return exchange_numbers(ranks, {own}).front();
}

void all_reduce(const Ranks& ranks, const at::Tensor& given, comm::ReduceOp operation) {
  const at::Tensor tensor = with_data(given);
  if (ranks.size() == 1) {
    return;
  }
  if (ranks.shapes_only()) {
    tell_skipped("all_reduce", ranks.size(), tensor);
    return;
  }
  const comm::CallerScope caller(ranks.caller());
  ranks.group().all_reduce(tensor, operation);
}

at::Tensor
gather(const Ranks& ranks, const at::Tensor& given, std::int64_t dim, const Lengths& lengths) {
  if (ranks.size() == 1) {
    return given;
  }
  const at::Tensor tensor = with_data(given);
  check_lengths("all_gather", ranks, tensor, dim, lengths, false);
  const auto joined = with_size(tensor.sizes(), dim, total(lengths));
  if (ranks.shapes_only()) {
    tell_skipped("all_gather", ranks.size(), tensor);
    return shaped(tensor, joined);
  }
  const comm::CallerScope caller(ranks.caller());
  if (equal(lengths) && outer(tensor.sizes(), dim) == 1 && ranks.in_order()) {
    at::Tensor output = at::empty(joined, tensor.options());
    ranks.group().all_gather(output, tensor.contiguous());
    return output;
  }
  at::Tensor input = tensor.contiguous();
  if (tensor.size(dim) != longest(lengths)) {
    input = at::zeros(with_size(tensor.sizes(), dim, longest(lengths)), tensor.options());
    input.narrow(dim, 0, tensor.size(dim)).copy_(tensor);
  }
  const at::Tensor output = at::empty(in_front(ranks.size(), input.sizes()), input.options());
  ranks.group().all_gather(output, input);
  return join(ranks, output, dim, lengths);
}

at::Tensor reduce_scatter(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths) {
  return begin_reduce_scatter(ranks, tensor, dim, lengths, false)();
}

at::Tensor exchange(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths) {
  return begin_exchange(ranks, tensor, split_dim, split_lengths, merge_dim, merge_lengths, false)();
}

Pending start_all_reduce(const Ranks& ranks, const at::Tensor& given) {
  if (ranks.size() == 1) {
    return ready(given);
  }
  const at::Tensor tensor = with_data(given);
  if (ranks.shapes_only()) {
    tell_skipped("all_reduce", ranks.size(), tensor);
    return ready(tensor);
  }
  const comm::CallerScope caller(ranks.caller());
  return after(ranks.group().all_reduce_async(tensor, comm::ReduceOp::kSum), {tensor}, [tensor] {
    return tensor;
  });
}

Pending start_reduce_scatter(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths) {
  return begin_reduce_scatter(ranks, tensor, dim, lengths, true);
}

Pending start_exchange(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths) {
  return begin_exchange(ranks, tensor, split_dim, split_lengths, merge_dim, merge_lengths, true);
}

at::Tensor reduce_scatter_blocks(const Ranks& ranks, const at::Tensor& given) {
  const at::Tensor blocks = with_data(given);
  TESSERA_CHECK(blocks.size(0) == ranks.size() && ranks.in_order());
  if (ranks.size() == 1) {
    return blocks.select(0, 0);
  }
  if (ranks.shapes_only()) {
    tell_skipped("reduce_scatter", ranks.size(), blocks);
    return shaped(blocks, blocks.sizes().slice(1).vec());
  }
  const at::Tensor output = at::empty_like(blocks.select(0, 0));
  const comm::CallerScope caller(ranks.caller());
  ranks.group().reduce_scatter(output, blocks);
  return output;
}

at::Tensor gather_blocks(const Ranks& ranks, const at::Tensor& given) {
  if (ranks.size() == 1) {
    return given.unsqueeze(0);
  }
  const at::Tensor block = with_data(given);
  const auto sizes = in_front(ranks.size(), block.sizes());
  if (ranks.shapes_only()) {
    tell_skipped("all_gather", ranks.size(), block);
    return shaped(block, sizes);
  }
  const at::Tensor output = at::empty(sizes, block.options());
  const comm::CallerScope caller(ranks.caller());
  ranks.group().all_gather(output, block.contiguous());
  return by_position(ranks, output);
}

} // namespace tessera::nn
