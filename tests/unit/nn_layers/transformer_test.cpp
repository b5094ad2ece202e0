// Attention, output layer, layer and stack beside the same written with torch.
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/tracer/describe.h"

#include "layer_comparison.h"

namespace tessera::testing {
namespace {

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
