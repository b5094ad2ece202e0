#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include <torch/torch.h>

#include "tessera/tessera.h"

#include "bench/support/memory_count.h"

/// Bytes of a rank under sharded data parallelism beside what docs/sharding.md says of them.
namespace tessera::bench {

/// What divides the model, and what its optimizer keeps of a parameter.
struct Sharded {
  int degree = 1;
  std::int64_t least_elements = 0; // sdp_param_persistence_threshold
  int moments = 2;
};

/// Highest bytes of a step, by formula: of divided parameters part, gradient and moments, the
/// largest whole gradient, two that have left and the parts of these, all of what stays whole, and
/// what a forward keeps.
inline std::int64_t formula_bytes(
    const std::vector<at::Tensor>& parameters,
    const Sharded& how,
    std::int64_t kept_by_forward) {
  std::int64_t bytes = kept_by_forward;
  std::int64_t largest = 0;
  for (const at::Tensor& parameter : parameters) {
    const auto size = parameter.numel() * static_cast<std::int64_t>(parameter.element_size());
    const bool divided = how.degree > 1 && parameter.numel() >= how.least_elements;
    bytes += (2 + how.moments) * (divided ? size / how.degree : size);
    largest = std::max(largest, divided ? size : 0);
  }
  return bytes + largest + 2 * (largest + largest / how.degree);
}

struct ShardMemory {
  std::int64_t formula = 0; // highest bytes of a step by formula_bytes
  std::int64_t highest = 0; // and as counted
  std::int64_t kept = 0; // of them, what the forward of a microbatch keeps
};

/// Trains some steps and counts the bytes of this rank in the last one, without the batch. `count`
/// sees all tensors; parts lie in shared memory, which is added. Collective over the world.
template <typename MakeNet, typename MakeOptimizer>
ShardMemory shard_memory(
    MemoryCount& count,
    const MakeNet& make_net,
    const MakeOptimizer& make_optimizer,
    const Sharded& how,
    const at::Tensor& x,
    const at::Tensor& y,
    int microbatches) {
  ShardMemory found;
  {
    auto plain = make_net();
    const at::Tensor rows = x.narrow(0, 0, x.size(0) / microbatches);
    const at::Tensor targets = y.narrow(0, 0, rows.size(0));
    const std::int64_t before = count.now();
    const at::Tensor loss = torch::mse_loss(plain(rows), targets);
    found.kept = count.now() - before;
    found.formula = formula_bytes(plain->parameters(), how, found.kept);
  }
  const std::int64_t base = count.now();
  DistributedModel model{make_net()};
  std::int64_t shared = 0;
  for (const auto& [name, parameter] : model.local_parameters()) {
    if (how.degree > 1 && parameter.numel() >= how.least_elements) {
      shared +=
          parameter.numel() * static_cast<std::int64_t>(parameter.element_size()) / how.degree;
    }
  }
  DistributedOptimizer optimizer(make_optimizer(model.parameters()));
  auto train_step = tessera::step([&](at::Tensor rows, at::Tensor targets) {
    model.backward(torch::mse_loss(model(rows), targets));
  });
  constexpr int kSteps = 4;
  for (int i = 0; i < kSteps; ++i) {
    if (i == kSteps - 1) { // the order of gradients is known, the optimizer has its state
      count.restart();
    }
    optimizer.zero_grad();
    train_step(x, y);
    optimizer.step();
    barrier();
  }
  found.highest = count.most() - base + shared;
  return found;
}

/// Prints what shard_memory finds on rank 0. Collective over the world.
inline void print(const ShardMemory& found) {
  if (rank() == 0) {
    const double mib = 1 << 20;
    const auto formula = static_cast<double>(found.formula);
    const auto highest = static_cast<double>(found.highest);
    std::printf(
        "memory of a rank in a step: %.1f MiB by formula, %.1f MiB at the highest, %.3f of it\n"
        "  of these %.1f MiB are kept by the forward of a microbatch\n",
        formula / mib,
        highest / mib,
        highest / formula,
        static_cast<double>(found.kept) / mib);
  }
}

} // namespace tessera::bench
