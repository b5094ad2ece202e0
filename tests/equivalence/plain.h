#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tests/equivalence/case.h"
#include "tests/equivalence/interpreter.h"

/// The same training by one process, with torch alone.
namespace tessera::equivalence {

struct Batch {
  torch::Tensor x, y, ids;
  Batch rows(std::int64_t first, std::int64_t count) const {
    return {x.narrow(0, first, count), y.narrow(0, first, count), ids.narrow(0, first, count)};
  }
};

/// Steps with a backward and evaluations are counted apart.
enum class StepKind { kTraining, kEvaluation };

/// What one replica is fed in one step: all its microbatches.
Batch batch_of(
    const Strategy& strategy,
    int world,
    std::uint64_t seed,
    StepKind kind,
    int number,
    int replica);

using State = std::map<std::string, torch::Tensor>;

/// Losses of one microbatch. `type`: of the tensors that the callee is given. The last term keeps a
/// graph where nothing that the model returns has one.
template <typename Callee>
std::vector<torch::Tensor> losses_of(
    Callee& callee,
    Signature signature,
    const torch::Tensor& x,
    const Batch& batch,
    at::ScalarType type) {
  const std::array<torch::Tensor, 3> in = {x.to(type), torch::tanh(x).to(type), (x * 0.5).to(type)};
  const Returned out = call_with(callee, signature, in, batch.ids, 4);
  const auto float_of = [&](std::size_t i) { return out.floats[i].to(torch::kFloat); };
  auto one = torch::mse_loss(float_of(0), batch.y);
  auto two = x.pow(2).mean() * 0.1;
  for (std::size_t i = 1; i < out.floats.size(); ++i) {
    two = two + torch::sin(float_of(i)).mean() * (1.0 + 0.5 * i);
  }
  return {one + x.mean() * 0.1, two};
}

torch::Tensor gradient_or_zeros(const torch::Tensor& x);

/// Of one step, by replica and microbatch.
using PerReplica = std::vector<std::vector<torch::Tensor>>;

/// Around one optimizer step.
struct Snapshot {
  PerReplica evaluated; // losses; empty without an evaluation
  State gradients; // before clipping and update; none where undefined
  double norm = 0; // of all gradients, not scaled
  bool overflow = false;
  double loss_scale = 1; // after it
  State values; // parameters and buffers after it
};

struct Trained {
  std::vector<PerReplica> losses; // by training step
  std::vector<PerReplica> input_gradients;
  std::vector<Snapshot> snapshots;
};

/// Each tensor once, under its first name, as the library lists it.
State named(const torch::OrderedDict<std::string, torch::Tensor>& all);

/// By part of a case, the parameters whose gradient a microbatch of the library sums over the
/// samples of a whole TP_GROUP, before anything divides it by the replicas.
using SummedOverGroup = std::vector<std::set<std::string>>;

/// `shake`: every parameter begins with another last bit. `summed`: matters to what overflows f16;
/// none for the other types.
Trained train_plain(
    const Case& one,
    int world,
    std::uint64_t seed,
    bool shake,
    const SummedOverGroup& summed);

double norm_of(const State& state);

} // namespace tessera::equivalence
