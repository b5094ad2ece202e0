#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/nn/layers/transformer_layer.h"

#include "plain_transformer.h"
#include "ranks.h"

/// A distributed part of a transformer beside the plain one: outputs, gradients
/// of inputs and of parameters on every rank.
namespace tessera::testing {

inline constexpr std::int64_t kPositions = 4;
inline constexpr std::int64_t kKeys = 3; // of cross states

inline TransformerOptions small_options() {
  TransformerOptions o;
  o.num_attention_heads = 4;
  o.attention_head_size = 3;
  o.hidden_size = 8;
  o.intermediate_size = 16;
  o.attention_dropout_prob = 0;
  o.hidden_dropout_prob = 0;
  o.num_layers = 2;
  o.num_positions = 6;
  o.vocab_size = 11;
  return o;
}

/// Nothing divides by 2 or 4.
inline TransformerOptions odd_options() {
  TransformerOptions o = small_options();
  o.num_attention_heads = 5;
  o.hidden_size = 9;
  o.intermediate_size = 13;
  return o;
}

struct Inputs {
  torch::Tensor hidden, mask, states, cross_mask;
};

/// What the ranks bring together; `weights` make a loss of the result.
struct Whole {
  std::vector<std::int64_t> samples;
  Inputs inputs;
  torch::Tensor weights;
};

enum class Mask { kNone, kSamples, kHeads, kSamplesAndHeads };

inline Whole whole_inputs(int tp, const TransformerOptions& o, Mask mask) {
  Whole whole;
  whole.samples = uneven_samples(tp);
  std::int64_t batch = 0;
  for (const std::int64_t count : whole.samples) {
    batch += count;
  }
  const auto heads = o.num_attention_heads;
  whole.inputs.hidden = fixed_random({batch, kPositions, o.hidden_size}, 1).requires_grad_();
  whole.weights = fixed_random({batch, kPositions, o.hidden_size}, 2);
  switch (mask) {
    case Mask::kNone:
      break;
    case Mask::kSamples:
      whole.inputs.mask = fixed_random({batch, 1, 1, kPositions}, 3);
      break;
    case Mask::kHeads:
      whole.inputs.mask = fixed_random({1, heads, kPositions, kPositions}, 3).requires_grad_();
      break;
    case Mask::kSamplesAndHeads:
      whole.inputs.mask = fixed_random({batch, heads, kPositions, kPositions}, 3).requires_grad_();
      break;
  }
  if (o.add_cross_attention) {
    whole.inputs.states = fixed_random({batch, kKeys, o.hidden_size}, 4).requires_grad_();
    whole.inputs.cross_mask = fixed_random({batch, 1, 1, kKeys}, 5);
  }
  return whole;
}

using PlainCall = std::function<torch::Tensor(const Inputs&)>;
using Distributed = std::pair<std::shared_ptr<torch::nn::Module>, PlainCall>;

/// Forward, input gradients and parameter gradients, for every rank.
inline void compare(
    const Setting& setting,
    const Whole& whole,
    torch::nn::Module& plain,
    const PlainCall& plain_call,
    const std::function<Distributed()>& make) {
  const auto y = plain_call(whole.inputs);
  (y * whole.weights).sum().backward();
  const auto gradients = gradients_of(plain);
  const auto& in = whole.inputs;

  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    const auto [module, call] = seeded(21, make);
    expect_parts_of(*module, parameters_of(plain));
    const bool shared = in.mask.defined() && in.mask.size(0) == 1;
    const auto mine = [&](const torch::Tensor& t) {
      if (!t.defined()) {
        return t;
      }
      return own_part(parallel, t.detach(), whole.samples)
          .clone()
          .requires_grad_(t.requires_grad());
    };
    Inputs own{mine(in.hidden), {}, mine(in.states), mine(in.cross_mask)};
    own.mask = shared ? in.mask.detach().clone().requires_grad_(true) : mine(in.mask);
    const auto result = call(own);
    expect_close(result, own_part(parallel, y, whole.samples), "output");
    (result * own_part(parallel, whole.weights, whole.samples)).sum().backward();
    expect_close(
        own.hidden.grad(),
        own_part(parallel, in.hidden.grad(), whole.samples),
        "gradient of the hidden states");
    if (in.states.defined()) {
      expect_close(
          own.states.grad(),
          own_part(parallel, in.states.grad(), whole.samples),
          "gradient of the cross states");
    }
    if (in.mask.defined() && in.mask.requires_grad()) {
      auto found = own.mask.grad().clone();
      if (shared && !setting.prescaled) {
        parallel.group->all_reduce(found); // as data parallelism does
      }
      expect_close(
          found,
          shared ? in.mask.grad() : own_part(parallel, in.mask.grad(), whole.samples),
          "gradient of the mask");
    }
    expect_gradients(parallel, *module, gradients);
  });
}

inline void
compare_layer(const Setting& setting, const TransformerOptions& options, Mask mask = Mask::kNone) {
  auto plain = seeded(21, [&] { return PlainLayer(options); });
  compare(
      setting,
      whole_inputs(setting.tp, options, mask),
      *plain,
      [&](const Inputs& in) { return plain(in.hidden, in.mask, in.states, in.cross_mask); },
      [&]() -> Distributed {
        nn::DistributedTransformerLayer layer(options);
        return {layer.ptr(), [layer](const Inputs& in) {
                  return std::get<0>(layer(in.hidden, in.mask, in.states, in.cross_mask));
                }};
      });
}

} // namespace tessera::testing
