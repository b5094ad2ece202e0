// Options of attention and layer beside the formulas written with torch.
#include "tessera/base/error.h"
#include "tessera/nn/layers/flash_attention_layer.h"
#include "tessera/nn/layers/lm_head.h"

#include "layer_comparison.h"

namespace tessera::testing {
namespace {

TransformerOptions causal_options() {
  TransformerOptions o = small_options();
  o.attention_head_size = 4;
  o.causal_mask_size = 6;
  o.pre_layernorm = true;
  o.post_layernorm = false;
  return o;
}

TransformerOptions with(TransformerOptions o, const std::function<void(TransformerOptions&)>& set) {
  set(o);
  return o;
}

class LayerOptions : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    LayerOptions,
    ::testing::ValuesIn(all_settings()),
    [](const auto& info) { return info.param.name(); });

TEST_P(LayerOptions, RotaryPositions) {
  for (const bool interleaved : {false, true}) {
    for (const double share : {0.5, 1.0}) {
      compare_layer(GetParam(), with(causal_options(), [&](auto& o) {
                      o.rotary_pct = share;
                      o.rotary_base = 50;
                      o.rotary_interleaved = interleaved;
                    }));
    }
  }
}

TEST_P(LayerOptions, Alibi) {
  auto options = causal_options();
  options.use_alibi = true;
  compare_layer(GetParam(), options);
  options.alibi_bias_max = 3;
  options.num_attention_heads = 5;
  compare_layer(GetParam(), options, Mask::kSamplesAndHeads);
  options.causal_mask_size.reset();
  compare_layer(GetParam(), options);
}

TEST_P(LayerOptions, AWindowInEverySecondLayer) {
  auto options = causal_options();
  options.attention_window = 2;
  compare_layer(GetParam(), options);
  options.attention_window_period = 2;
  compare_layer(GetParam(), options); // its first layer has none
  options.layer_idx = 1;
  compare_layer(GetParam(), options);
}

TEST_P(LayerOptions, SharedKeyHeads) {
  auto options = causal_options();
  options.num_attention_heads = 8;
  options.num_key_value_heads = 4;
  compare_layer(GetParam(), options);
  options.num_key_value_heads = 8; // the other layout of as many heads
  compare_layer(GetParam(), options, Mask::kHeads);
  options.num_attention_heads = 10; // uneven over 2 and 4 ranks
  options.num_key_value_heads = 5;
  compare_layer(GetParam(), options, Mask::kSamplesAndHeads);
  compare_layer(GetParam(), options, Mask::kHeads);
  options.add_cross_attention = true;
  compare_layer(GetParam(), with(options, [](auto& o) { o.num_key_value_heads = 0; }));
}

TEST_P(LayerOptions, GatedOutput) {
  auto options = odd_options();
  options.gated_output = true;
  for (const char* activation : {"silu", "gelu"}) {
    options.activation = activation;
    compare_layer(GetParam(), options);
  }
}

TEST_P(LayerOptions, AttentionAndOutputSideBySide) {
  auto options = causal_options();
  options.parallel_attention_output = true;
  compare_layer(GetParam(), options);
  options.shared_layernorm = true;
  compare_layer(GetParam(), options, Mask::kSamples);
}

TEST_P(LayerOptions, BiasesOneByOne) {
  compare_layer(
      GetParam(), with(causal_options(), [](auto& o) { o.query_key_value_bias = false; }));
  compare_layer(
      GetParam(), with(causal_options(), [](auto& o) { o.attention_dense_bias = false; }));
  compare_layer(GetParam(), with(causal_options(), [](auto& o) { o.output_bias = false; }));
}

TEST_P(LayerOptions, ScalesOfScores) {
  auto options = causal_options();
  options.layer_idx = 2;
  options.query_key_layer_scaling = true;
  options.attention_in_fp32 = true;
  compare_layer(GetParam(), options);
  options.scale_attn_by_layer_idx = true;
  compare_layer(GetParam(), options, Mask::kSamples);
}

/// The layer of Llama, and with everything that can go together.
TransformerOptions llama_options() {
  auto options = causal_options();
  options.num_attention_heads = 8;
  options.num_key_value_heads = 4;
  options.rotary_pct = 1;
  options.rms_layernorm = true;
  options.gated_output = true;
  options.activation = "silu";
  options.linear_bias = false;
  return options;
}

TEST_P(LayerOptions, LayersOfLlamaGptJAndNeoX) {
  compare_layer(GetParam(), llama_options());
  auto options = causal_options();
  options.rotary_pct = 0.5;
  options.parallel_attention_output = true;
  options.num_key_value_heads = options.num_attention_heads;
  compare_layer(GetParam(), options); // NeoX
  options.num_key_value_heads = 0;
  options.rotary_interleaved = true;
  options.shared_layernorm = true;
  options.query_key_value_bias = false;
  options.attention_dense_bias = false;
  compare_layer(GetParam(), options); // GPT-J
}

TEST_P(LayerOptions, FlashAttentionIsTheSame) {
  for (auto options :
       {llama_options(),
        with(causal_options(), [](auto& o) { o.use_alibi = true; }),
        with(causal_options(), [](auto& o) { o.attention_window = 2; }),
        with(causal_options(), [](auto& o) { o.causal_mask_size.reset(); })}) {
    options.flash_attention = true;
    compare_layer(GetParam(), options);
    compare_layer(GetParam(), options, Mask::kSamplesAndHeads);
    compare_layer(GetParam(), options, Mask::kHeads);
  }
}

TEST_P(LayerOptions, EpsilonOfTheNorms) {
  auto options = causal_options();
  options.layernorm_epsilon = 0.4;
  compare_layer(GetParam(), options);
  options.rms_layernorm = true;
  compare_layer(GetParam(), options);
}

// With a probability close to 1 everything is dropped: what is left says where.
TEST_P(LayerOptions, EachDropoutActsInItsPlace) {
  constexpr double kAll = 1 - 1e-7;
  const auto options = causal_options();
  const auto hidden = fixed_random({2, kPositions, options.hidden_size}, 1);
  const auto whole = [](const std::shared_ptr<torch::nn::Module>& module, const char* bias) {
    torch::Tensor full = torch::zeros({8});
    for (const auto& parameter : distributed_parameters(*module)) {
      if (parameter.name == bias) {
        nn::put_shard(parameter.description.shard, parameter.tensor.detach(), full);
      }
    }
    return full;
  };
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    const auto bias_of = [&](const auto& module, const char* name) {
      torch::Tensor full = whole(module.ptr(), name);
      if (parallel.size() > 1 && parallel.distribution == nn::Distribution::kMemory) {
        parallel.group->all_reduce(full);
      }
      return full;
    };
    const auto attention = [&](const std::function<void(TransformerOptions&)>& set) {
      return seeded(3, [&] { return nn::DistributedAttentionLayer(with(options, set)); });
    };
    const auto output = [&](const std::function<void(TransformerOptions&)>& set) {
      return seeded(3, [&] { return nn::DistributedTransformerOutputLayer(with(options, set)); });
    };
    auto weights_dropped = attention([](auto& o) { o.attention_dropout_prob = kAll; });
    auto update_dropped = attention([](auto& o) { o.hidden_dropout_prob = kAll; });
    auto plain = output([](auto&) {});
    auto unconcerned = output([](auto& o) { o.attention_dropout_prob = kAll; });
    auto inner_dropped = output([](auto& o) { o.intermediate_dropout_prob = kAll; });
    auto all_dropped = output([](auto& o) { o.hidden_dropout_prob = kAll; });
    if (parallel.group != nullptr) {
      // Dropout draws without the lock of `seeded`, which would change another rank's weights.
      parallel.group->barrier();
    }
    expect_close(
        weights_dropped->forward_self(hidden),
        hidden + bias_of(weights_dropped, "dense.bias"),
        "attention without weights");
    expect_close(update_dropped->forward_self(hidden), hidden, "attention without update");
    expect_close(unconcerned(hidden), plain(hidden), "the attention's probability");
    expect_close(
        inner_dropped(hidden),
        hidden + bias_of(inner_dropped, "dense2.bias"),
        "output without inner features");
    expect_close(all_dropped(hidden), hidden, "output without update");
    all_dropped->eval();
    expect_close(all_dropped(hidden), plain(hidden), "evaluation");
  });
}

TEST_P(LayerOptions, StackCountsItsLayers) {
  auto options = causal_options();
  options.attention_window = 2;
  options.attention_window_period = 2;
  options.scale_attn_by_layer_idx = true;
  options.num_layers = 3;
  auto plain = seeded(21, [&] { return PlainTransformer(options); });
  compare(
      GetParam(),
      whole_inputs(GetParam().tp, options, Mask::kNone),
      *plain,
      [&](const Inputs& in) { return plain(in.hidden, in.mask, in.states, in.cross_mask); },
      [&]() -> Distributed {
        nn::DistributedTransformer stack(options);
        return {stack.ptr(), [stack](const Inputs& in) {
                  return std::get<0>(stack(in.hidden, in.mask, in.states, in.cross_mask));
                }};
      });
}

TEST_P(LayerOptions, ALanguageModelWhoseAttentionKnowsPositionsHasNoTableOfThem) {
  for (const bool alibi : {false, true}) {
    auto options = llama_options();
    options.rotary_pct = alibi ? 0 : 1;
    options.use_alibi = alibi;
    auto plain = seeded(5, [&] { return PlainLMHead(options); });
    const auto samples = uneven_samples(GetParam().tp);
    std::int64_t batch = 0;
    for (const auto count : samples) {
      batch += count;
    }
    const auto ids = torch::arange(batch * 4).remainder(options.vocab_size).view({batch, 4});
    const torch::Tensor none;
    const auto expected = plain(ids, none, none, none, none, none);
    const auto parameters = parameters_of(*plain);
    EXPECT_EQ(parameters.count("position_embedding.weight"), 0);
    on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
      auto model = seeded(5, [&] { return nn::DistributedTransformerLMHead(options); });
      expect_parts_of(*model, parameters);
      nn::LMHeadInputs inputs;
      inputs.input_ids = own_part(parallel, ids, samples);
      expect_close(model->run(inputs), own_part(parallel, expected, samples), "logits");
      inputs.position_ids = torch::arange(4).unsqueeze(0);
      EXPECT_THROW(model->run(inputs), ShapeError);
    });
  }
}

TEST(LayerOptionDefaults, AreTheDocumentedOnes) {
  const TransformerOptions o;
  EXPECT_EQ(o.num_attention_heads, 32);
  EXPECT_EQ(o.attention_head_size, 32);
  EXPECT_EQ(o.hidden_size, 1024);
  EXPECT_EQ(o.intermediate_size, 4096);
  EXPECT_EQ(o.attention_dropout_prob, 0.1);
  EXPECT_EQ(o.hidden_dropout_prob, 0.1);
  EXPECT_EQ(o.activation, "gelu");
  EXPECT_EQ(o.layernorm_epsilon, 1e-5);
  EXPECT_EQ(o.initializer_range, 0.02);
  EXPECT_FALSE(o.use_normal_initialization);
  EXPECT_FALSE(o.causal_mask_size.has_value());
  EXPECT_FALSE(o.pre_layernorm);
  EXPECT_TRUE(o.post_layernorm);
  EXPECT_FALSE(o.cross_attention);
  EXPECT_FALSE(o.add_cross_attention);
  EXPECT_EQ(o.num_layers, 12);
  EXPECT_EQ(o.vocab_size, 30522);
  EXPECT_EQ(o.num_positions, 1024);
  EXPECT_EQ(o.num_token_types, 0);
  EXPECT_TRUE(o.add_lm_head);
  EXPECT_FALSE(o.use_alibi);
  EXPECT_EQ(o.alibi_bias_max, 8);
}

TEST(LayerOptionErrors, SayWhatWorks) {
  const auto message = [](const TransformerOptions& options, int tp = 1) {
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
  const auto expect = [&](const char* part, const std::function<void(TransformerOptions&)>& set) {
    const auto text = message(with(causal_options(), set));
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect("divide num_attention_heads", [](auto& o) { o.num_key_value_heads = 3; });
  expect("in [0, 1]", [](auto& o) { o.rotary_pct = 1.5; });
  expect("even number", [](auto& o) { o.rotary_pct = 0.75; });
  expect("above 0", [](auto& o) { o.alibi_bias_max = 0; });
  expect("needs causal_mask_size", [](auto& o) {
    o.attention_window = 2;
    o.causal_mask_size.reset();
  });
  expect("attention_window_period", [](auto& o) { o.attention_window_period = 0; });
  expect("count from 0", [](auto& o) { o.layer_idx = -1; });
  expect("pre_layernorm alone", [](auto& o) {
    o.parallel_attention_output = true;
    o.post_layernorm = true;
  });
  expect("shared_layernorm", [](auto& o) { o.shared_layernorm = true; });
  const auto few = with(causal_options(), [](auto& o) { o.num_key_value_heads = 2; });
  EXPECT_NE(message(few, 4).find("2 key-value heads"), std::string::npos);
}

} // namespace
} // namespace tessera::testing
