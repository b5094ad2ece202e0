#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"

namespace tessera::nn {

struct DistributedExpertsOptions {
  std::int64_t hidden_size = 1024;
  std::int64_t intermediate_size = 4096;
  std::int64_t num_experts = 8;
  std::int64_t top_k = 2;
  /// An expert takes at most ceil(capacity_factor * top_k * tokens / experts)
  /// tokens of a call; the others pass it by. 0: no limit.
  double capacity_factor = 1.25;
  /// Gate values of a token's experts are divided by their sum.
  bool normalize_gates = true;
  std::string activation = "gelu"; // "gelu", "gelu_tanh" or "relu"
  double initializer_range = 0.02;
};

/// Which token goes to which place of which expert.
struct Routing {
  at::Tensor tokens; // [n] token of each kept choice
  at::Tensor slots; // [n] expert * capacity + place
  at::Tensor gates; // [n] with gradient
  at::Tensor balance; // load-balancing loss, with gradient
  std::int64_t capacity = 0;
};

/// Top-k gating with capacity. First choices of all tokens are placed before
/// second choices, earlier tokens before later ones. The loss is E sum_e f_e
/// P_e: f_e the share of choices that fell on expert e, P_e its mean gate.
/// Shapes: logits_TE, f32 or f64. Not collective. Threads: any.
/// Source: Lepikhin et al. 2021 (GShard), algorithm 1; Fedus et al. 2022
/// (Switch), equations (4)-(6).
Routing route(const at::Tensor& logits, const DistributedExpertsOptions& options);

/// A mixture of experts, each gelu(x W1 + b1) W2 + b2, divided over the ranks,
/// whichever distribution the other layers have.
/// Every rank routes its own tokens; an all-to-all brings them to their experts
/// and another one back. With a prescaled batch nothing is sent there: every
/// rank serves its experts from the tokens it has, and results are all-reduced.
///
/// Shapes: x_b...I -> (y_b...I, load-balancing loss). A token that no expert
/// took gets zeros. Capacity counts the tokens of this rank's call, so the
/// result is that of one process with these tokens.
/// Parameters: gate [E, I] whole; inner_weight [E, F, I], inner_bias [E, F],
/// outer_weight [E, I, F], outer_bias [E, I] divided by expert.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Cost: forward and backward each two all-to-alls of E C I numbers a rank, C
/// the capacity.
/// Throws: ConfigError for the options; ShapeError when a rank would have no
/// expert.
class DistributedExpertsImpl : public DistributedModule {
 public:
  explicit DistributedExpertsImpl(const DistributedExpertsOptions& options);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x);

  DistributedExpertsOptions options;
  at::Tensor gate;
  at::Tensor inner_weight, inner_bias, outer_weight, outer_bias;

 private:
  /// Every expert of this rank on its tokens: x_eCI -> y_eCI.
  at::Tensor expert_outputs(const at::Tensor& x);
};
TESSERA_MODULE(DistributedExperts);

} // namespace tessera::nn
