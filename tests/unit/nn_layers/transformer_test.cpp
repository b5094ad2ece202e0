// Attention, output layer, layer and stack beside the same written with torch.
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/tracer/describe.h"

#include "plain_transformer.h"
#include "ranks.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kPositions = 4;
constexpr std::int64_t kKeys = 3; // of cross states

TransformerOptions small_options() {
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
TransformerOptions odd_options() {
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

Whole whole_inputs(int tp, const TransformerOptions& o, Mask mask) {
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
void compare(
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

void compare_layer(
    const Setting& setting,
    const TransformerOptions& options,
    Mask mask = Mask::kNone) {
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

class Transformers : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    Transformers,
    ::testing::ValuesIn(all_settings()),
    [](const auto& info) { return info.param.name(); });

TEST_P(Transformers, AttentionAlone) {
  auto options = small_options();
  auto plain = seeded(21, [&] { return PlainAttention(options, false); });
  compare(
      GetParam(),
      whole_inputs(GetParam().tp, options, Mask::kSamples),
      *plain,
      [&](const Inputs& in) { return plain(in.hidden, in.mask, in.states); },
      [&]() -> Distributed {
        nn::DistributedAttentionLayer layer(options);
        return {layer.ptr(), [layer](const Inputs& in) {
                  return layer(in.hidden, in.mask, in.states);
                }};
      });
}

TEST_P(Transformers, CrossAttentionAlone) {
  auto options = odd_options();
  options.cross_attention = true;
  auto plain = seeded(21, [&] { return PlainAttention(options, true); });
  auto with_states = options;
  with_states.add_cross_attention = true;
  compare(
      GetParam(),
      whole_inputs(GetParam().tp, with_states, Mask::kNone),
      *plain,
      [&](const Inputs& in) { return plain(in.hidden, in.cross_mask, in.states); },
      [&]() -> Distributed {
        nn::DistributedAttentionLayer layer(options);
        return {layer.ptr(), [layer](const Inputs& in) {
                  return layer(in.hidden, in.cross_mask, in.states);
                }};
      });
}

TEST_P(Transformers, OutputLayerAlone) {
  for (const char* activation : {"gelu", "gelu_tanh", "relu"}) {
    auto options = odd_options();
    options.activation = activation;
    auto plain = seeded(21, [&] { return PlainOutput(options); });
    compare(
        GetParam(),
        whole_inputs(GetParam().tp, options, Mask::kNone),
        *plain,
        [&](const Inputs& in) { return plain(in.hidden); },
        [&]() -> Distributed {
          nn::DistributedTransformerOutputLayer layer(options);
          return {layer.ptr(), [layer](const Inputs& in) { return layer(in.hidden); }};
        });
  }
}

TEST_P(Transformers, LayerWithEveryPlaceOfTheNorm) {
  auto options = small_options();
  compare_layer(GetParam(), options);
  options.pre_layernorm = true;
  compare_layer(GetParam(), options);
  options.post_layernorm = false;
  compare_layer(GetParam(), options);
}

TEST_P(Transformers, LayerWithMasks) {
  auto options = small_options();
  compare_layer(GetParam(), options, Mask::kSamples);
  compare_layer(GetParam(), options, Mask::kHeads);
  compare_layer(GetParam(), options, Mask::kSamplesAndHeads);
  options.causal_mask_size = 6;
  compare_layer(GetParam(), options);
  compare_layer(GetParam(), options, Mask::kSamples);
}

TEST_P(Transformers, LayerOfOddSizes) {
  compare_layer(GetParam(), odd_options());
  compare_layer(GetParam(), odd_options(), Mask::kSamplesAndHeads);
  compare_layer(GetParam(), odd_options(), Mask::kHeads);
}

TEST_P(Transformers, LayerWithCrossAttention) {
  auto options = small_options();
  options.add_cross_attention = true;
  options.causal_mask_size = 8;
  compare_layer(GetParam(), options);
  options = odd_options();
  options.add_cross_attention = true;
  options.pre_layernorm = true;
  compare_layer(GetParam(), options, Mask::kSamples);
}

TEST_P(Transformers, LayerAsInT5) {
  auto options = small_options();
  options.linear_bias = false;
  options.rms_layernorm = true;
  options.scale_attention_scores = false;
  options.pre_layernorm = true;
  options.post_layernorm = false;
  options.activation = "relu";
  options.add_cross_attention = true;
  compare_layer(GetParam(), options, Mask::kHeads);
}

TEST_P(Transformers, Stack) {
  auto options = odd_options();
  options.add_cross_attention = true;
  auto plain = seeded(21, [&] { return PlainTransformer(options); });
  compare(
      GetParam(),
      whole_inputs(GetParam().tp, options, Mask::kSamplesAndHeads),
      *plain,
      [&](const Inputs& in) { return plain(in.hidden, in.mask, in.states, in.cross_mask); },
      [&]() -> Distributed {
        nn::DistributedTransformer stack(options);
        return {stack.ptr(), [stack](const Inputs& in) {
                  return std::get<0>(stack(in.hidden, in.mask, in.states, in.cross_mask));
                }};
      });
}

TEST_P(Transformers, NormalInitialisationOnRequest) {
  auto options = small_options();
  options.use_normal_initialization = true;
  options.initializer_range = 0.5;
  on_ranks(GetParam(), [&](const nn::TensorParallel&) {
    const auto layer = seeded(8, [&] { return nn::DistributedTransformerOutputLayer(options); });
    const auto full = seeded(8, [&] {
      return std::map<std::string, torch::Tensor>{
          {"dense1.weight", torch::empty({16, 8}).normal_(0, 0.5)},
          {"dense1.bias", torch::zeros({16})},
          {"dense2.weight", torch::empty({8, 16}).normal_(0, 0.5)},
          {"dense2.bias", torch::zeros({8})},
          {"layernorm.weight", torch::ones({8})},
          {"layernorm.bias", torch::zeros({8})}};
    });
    expect_parts_of(*layer, full);
  });
}

TEST_P(Transformers, StateComesBackToTheBit) {
  auto options = odd_options();
  options.add_cross_attention = true;
  options.pre_layernorm = true;
  auto plain = seeded(21, [&] { return PlainLayer(options); });
  const auto expected = parameters_of(*plain);
  std::map<std::string, torch::Tensor> joined;
  for (const auto& [name, tensor] : expected) {
    joined[name] = torch::full_like(tensor, 77); // what nobody writes stays
  }
  std::mutex mutex;
  on_ranks(GetParam(), [&](const nn::TensorParallel&) {
    auto layer = seeded(99, [&] { return nn::DistributedTransformerLayer(options); });
    const torch::NoGradGuard no_grad;
    for (auto& parameter : distributed_parameters(*layer)) {
      const auto& shard = parameter.description.shard;
      parameter.tensor.copy_(nn::take_shard(shard, expected.at(parameter.name)));
      const std::lock_guard lock(mutex);
      nn::put_shard(shard, parameter.tensor, joined.at(parameter.name));
    }
  });
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::equal(joined.at(name), tensor)) << name;
  }
}

TEST_P(Transformers, DelayedLayersAreSharesOfOneLayer) {
  const auto options = odd_options();
  std::map<std::string, torch::Tensor> joined;
  for (const auto& [name, tensor] : parameters_of(*PlainLayer(options))) {
    joined[name] = torch::full_like(tensor, 77); // what nobody writes stays
  }
  std::mutex mutex;
  on_ranks(GetParam(), [&](const nn::TensorParallel&) {
    auto layer = seeded(31, [&] {
      const tracer::DelayedInitScope scope;
      return nn::DistributedTransformerLayer(options);
    });
    EXPECT_TRUE(tracer::has_delayed(*layer));
    seeded(32, [&] { // one thread at a time
      tracer::materialize(*layer);
      return 0;
    });
    const torch::NoGradGuard no_grad;
    const std::lock_guard lock(mutex);
    for (const auto& parameter : distributed_parameters(*layer)) {
      const auto& shard = parameter.description.shard;
      torch::Tensor& full = joined.at(parameter.name);
      // Ranks that hold the same agree about it.
      const auto before = nn::take_shard(shard, full);
      EXPECT_TRUE(before.eq(77).all().item<bool>() || torch::equal(before, parameter.tensor))
          << parameter.name;
      nn::put_shard(shard, parameter.tensor, full);
    }
  });
  for (const auto& [name, tensor] : joined) {
    EXPECT_LT(tensor.abs().max().item<double>(), 2) << name;
  }
}

TEST_P(Transformers, PartsOfALayerAreNotReportedAsKeptWhole) {
  on_ranks(GetParam(), [&](const nn::TensorParallel&) {
    auto layer = seeded(31, [&] { return nn::DistributedTransformerLayer(small_options()); });
    EXPECT_TRUE(tracer::describe(*layer, "model").kept.empty());
  });
}

TEST(TransformerErrors, SayWhatWorks) {
  const auto message = [](TransformerOptions options, int tp) {
    std::string text;
    on_ranks({tp}, [&](const nn::TensorParallel& parallel) {
      try {
        nn::DistributedTransformerLayer layer(options);
      } catch (const Error& e) {
        if (parallel.rank() == 0) {
          text = e.what();
        }
      }
    });
    return text;
  };
  auto options = small_options();
  options.num_attention_heads = 3;
  EXPECT_NE(message(options, 4).find("tensor_parallel_degree of at most 3"), std::string::npos);
  options = small_options();
  options.post_layernorm = false;
  EXPECT_NE(message(options, 1).find("at least one"), std::string::npos);
  options = small_options();
  options.activation = "tanh";
  EXPECT_NE(message(options, 1).find("gelu_tanh"), std::string::npos);
  options = small_options();
  options.causal_mask_size = 3;
  nn::DistributedTransformerLayer layer(options);
  EXPECT_THROW(
      layer(torch::ones({1, 4, 8}), torch::Tensor(), torch::Tensor(), torch::Tensor()), ShapeError);
  EXPECT_THROW(layer->hidden_states(torch::ones({1, 4, 7})), ShapeError);
}

} // namespace
} // namespace tessera::testing
