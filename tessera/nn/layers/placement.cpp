#include "tessera/nn/layers/placement.h"

#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/nn/parallel/random_streams.h"
#include "tessera/nn/parallel/shard.h"

namespace tessera::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

using Move = std::function<at::Tensor(const at::Tensor&)>;

struct MoveCall : torch::CustomClassHolder {
  Move forward;
  Move backward;
};

/// A linear map between placements: neither direction needs the operand.
struct MoveNode : Function<MoveNode> {
  static at::Tensor
  forward(AutogradContext* context, const at::Tensor& x, const c10::intrusive_ptr<MoveCall>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->forward(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto capsule = context->saved_data["call"].toCapsule();
    return {static_cast<const MoveCall&>(*capsule).backward(grads[0]), {}};
  }
};

at::Tensor moved(const at::Tensor& x, Move forward, Move backward) {
  auto call = c10::make_intrusive<MoveCall>();
  call->forward = std::move(forward);
  call->backward = std::move(backward);
  return MoveNode::apply(x, call);
}

at::Tensor part(const at::Tensor& x, std::int64_t dim, const Lengths& lengths, int rank) {
  const auto start = std::accumulate(lengths.begin(), lengths.begin() + rank, std::int64_t{0});
  return x.narrow(dim, start, lengths[rank]).contiguous();
}

} // namespace

Placement outside_placement(const TensorParallel& parallel) {
  return parallel.prescaled_batch ? Placement::kReplicated : Placement::kOwnSamples;
}

Placement inside_placement(const TensorParallel& parallel) {
  return parallel.distribution == Distribution::kMemory ? Placement::kSharded
                                                        : outside_placement(parallel);
}

at::Tensor shard_channels(const TensorParallel& parallel, const at::Tensor& x) {
  if (parallel.size() == 1) {
    return x;
  }
  const Lengths channels = even_lengths(x.size(-1), parallel.size());
  const std::int64_t dim = x.dim() - 1;
  return moved(
      x,
      [=](const at::Tensor& t) { return part(t, dim, channels, parallel.rank()); },
      [=](const at::Tensor& g) { return gather(parallel, g, dim, channels); });
}

at::Tensor
gather_channels(const TensorParallel& parallel, const at::Tensor& x, std::int64_t channels) {
  if (parallel.size() == 1) {
    return x;
  }
  const Lengths lengths = even_lengths(channels, parallel.size());
  const std::int64_t dim = x.dim() - 1;
  return moved(
      x,
      [=](const at::Tensor& t) { return gather(parallel, t, dim, lengths); },
      [=](const at::Tensor& g) { return part(g, dim, lengths, parallel.rank()); });
}

at::Tensor
samples_to_shard(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples) {
  return samples_to_shard(parallel, x, x.dim() - 1, samples);
}

at::Tensor samples_to_shard(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t dim,
    const Lengths& samples) {
  const Lengths channels = even_lengths(x.size(dim), parallel.size());
  return exchanged(parallel, x, dim, channels, 0, samples);
}

at::Tensor shard_to_samples(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples) {
  const Lengths lengths = even_lengths(channels, parallel.size());
  return exchanged(parallel, x, 0, samples, x.dim() - 1, lengths);
}

at::Tensor exchanged(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths) {
  if (parallel.size() == 1) {
    return x;
  }
  return moved(
      x,
      [=](const at::Tensor& t) {
        return exchange(parallel, t, split_dim, split_lengths, merge_dim, merge_lengths);
      },
      [=](const at::Tensor& g) {
        return exchange(parallel, g, merge_dim, merge_lengths, split_dim, split_lengths);
      });
}

at::Tensor
gather_samples(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples) {
  if (parallel.size() == 1) {
    return x;
  }
  if (!x.requires_grad()) {
    return gather(parallel, x, 0, samples); // masks, ids
  }
  return moved(
      x,
      [=](const at::Tensor& t) { return gather(parallel, t, 0, samples); },
      [=](const at::Tensor& g) { return reduce_scatter(parallel, g, 0, samples); });
}

at::Tensor
keep_own_samples(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples) {
  if (parallel.size() == 1) {
    return x;
  }
  return moved(
      x,
      [=](const at::Tensor& t) { return part(t, 0, samples, parallel.rank()); },
      [=](const at::Tensor& g) { return gather(parallel, g, 0, samples); });
}

at::Tensor sum_of_partials(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement to,
    const Lengths& samples) {
  if (parallel.size() == 1) {
    return x;
  }
  if (to == Placement::kReplicated) {
    return moved(
        x,
        [=](const at::Tensor& t) {
          at::Tensor sum = t.clone(at::MemoryFormat::Contiguous);
          all_reduce(parallel, sum);
          return sum;
        },
        [](const at::Tensor& g) { return g; });
  }
  const bool by_samples = to == Placement::kOwnSamples;
  const std::int64_t dim = by_samples ? 0 : x.dim() - 1;
  const Lengths lengths = by_samples ? samples : even_lengths(x.size(-1), parallel.size());
  return moved(
      x,
      [=](const at::Tensor& t) { return reduce_scatter(parallel, t, dim, lengths); },
      [=](const at::Tensor& g) { return gather(parallel, g, dim, lengths); });
}

at::Tensor enter(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples) {
  if (inside_placement(parallel) != Placement::kSharded) {
    return x;
  }
  return parallel.prescaled_batch ? shard_channels(parallel, x)
                                  : samples_to_shard(parallel, x, samples);
}

at::Tensor leave(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples) {
  if (inside_placement(parallel) != Placement::kSharded) {
    return x;
  }
  return parallel.prescaled_batch ? gather_channels(parallel, x, channels)
                                  : shard_to_samples(parallel, x, channels, samples);
}

Lengths samples_of_ranks(const TensorParallel& parallel, std::int64_t own) {
  return parallel.prescaled_batch ? Lengths(parallel.size(), own) : exchange_length(parallel, own);
}

at::Tensor drop(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement placement,
    double probability,
    bool training) {
  if (!training || probability <= 0) {
    return x;
  }
  switch (placement) {
    case Placement::kReplicated:
      return drop_replicated(parallel, x, probability);
    case Placement::kSharded:
      return drop_sharded(parallel, x, probability);
    case Placement::kOwnSamples:
      break;
  }
  return at::dropout(x, probability, true);
}

} // namespace tessera::nn
