// What the constructors' options do where a comparison with plain layers cannot see them: defaults,
// which probability drops what, the dtype of parameters.
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/layer_norm.h"
#include "tessera/nn/layers/linear.h"
#include "tessera/nn/layers/lm_head.h"
#include "tessera/nn/parallel/parameter_creation.h"

#include "ranks.h"

namespace tessera::testing {
namespace {

using nn::TransformerOptions;

// Source: Karakus et al. 2021, appendix I.3; the library's documentation of tessera::nn's models.
TEST(Defaults, AreThoseOfThePaper) {
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
  // Ours, which must change nothing.
  EXPECT_FALSE(o.fp32_residual_addition);
  EXPECT_TRUE(o.scale_attention_scores);
  EXPECT_TRUE(o.linear_bias);
  EXPECT_FALSE(o.rms_layernorm);
  EXPECT_EQ(o.intermediate_dropout_prob, 0);
  const nn::DistributedEmbeddingOptions e;
  EXPECT_FALSE(e.padding_idx.has_value());
  EXPECT_FALSE(e.max_norm.has_value());
  EXPECT_EQ(e.norm_type, 2);
  EXPECT_FALSE(e.scale_grad_by_freq);
  EXPECT_FALSE(e.sparse);
  EXPECT_FALSE(e._weight.defined());
  EXPECT_EQ(e.initializer_range, 0.02);
  EXPECT_FALSE(e._skip_allgather);
  EXPECT_FALSE(e._skip_scatter_and_merge);
  EXPECT_EQ(e.split, nn::EmbeddingSplit::kEmbeddingDim);
  EXPECT_TRUE(nn::DistributedLinearOptions().bias);
  EXPECT_EQ(nn::DistributedLayerNormOptions().layernorm_epsilon, 1e-5);
  const nn::ParameterCreation p;
  EXPECT_TRUE(p.scaled_batch);
  EXPECT_FALSE(p.dtype.has_value());
  EXPECT_FALSE(p.use_normal);
  EXPECT_EQ(p.initializer_range, 0.02);
}

constexpr double kAll = 1 - 1e-9; // drops all that a test has
constexpr double kBias = 0.25;

using Probability = double TransformerOptions::*;
constexpr Probability kAttention = &TransformerOptions::attention_dropout_prob;
constexpr Probability kHidden = &TransformerOptions::hidden_dropout_prob;
constexpr Probability kIntermediate = &TransformerOptions::intermediate_dropout_prob;

/// Only one of the probabilities is not 0.
TransformerOptions dropping(Probability which) {
  TransformerOptions o;
  o.num_attention_heads = 4;
  o.attention_head_size = 3;
  o.hidden_size = 8;
  o.intermediate_size = 16;
  o.pre_layernorm = true;
  o.post_layernorm = false;
  o.num_layers = 1;
  o.num_positions = 6;
  o.vocab_size = 11;
  o.attention_dropout_prob = 0;
  o.hidden_dropout_prob = 0;
  o.*which = kAll;
  return o;
}

class Dropout : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Settings, Dropout, ::testing::ValuesIn(all_settings()), [](const auto& i) {
  return i.param.name();
});

/// What a module in training makes of the input, what it makes in evaluation, the input.
template <typename Layer, typename Call>
void for_each_rank(
    const Setting& setting,
    const TransformerOptions& options,
    const Call& call,
    const std::function<
        void(const torch::Tensor& trained, const torch::Tensor& evaluated, const torch::Tensor& x)>&
        check) {
  on_ranks(setting, [&](const nn::TensorParallel&) {
    auto layer = seeded(2, [&] { return Layer(options); });
    const torch::NoGradGuard no_grad;
    for (auto& item : layer->named_parameters()) {
      if (item.key().ends_with("dense.bias") || item.key().ends_with("dense2.bias")) {
        item.value().fill_(kBias);
      }
    }
    const auto x = fixed_random({3, 4, options.hidden_size}, 5);
    const auto trained = call(layer, x);
    layer->eval();
    check(trained, call(layer, x), x);
  });
}

template <typename Check>
void of_attention(const Setting& setting, Probability which, const Check& check) {
  for_each_rank<nn::DistributedAttentionLayer>(
      setting,
      dropping(which),
      [](auto& layer, const torch::Tensor& x) {
        return layer(x, torch::Tensor(), torch::Tensor());
      },
      check);
}

template <typename Check>
void of_output(const Setting& setting, Probability which, const Check& check) {
  for_each_rank<nn::DistributedTransformerOutputLayer>(
      setting,
      dropping(which),
      [](auto& layer, const torch::Tensor& x) { return layer(x); },
      check);
}

const auto kUpdateGone =
    [](const torch::Tensor& trained, const torch::Tensor& evaluated, const torch::Tensor& x) {
      EXPECT_TRUE(torch::allclose(trained, x));
      EXPECT_FALSE(torch::allclose(evaluated, x)); // nor in evaluation
    };
const auto kOnlyBiasLeft =
    [](const torch::Tensor& trained, const torch::Tensor& evaluated, const torch::Tensor& x) {
      EXPECT_TRUE(torch::allclose(trained, x + kBias));
      EXPECT_FALSE(torch::allclose(evaluated, x + kBias));
    };
const auto kNothingGone =
    [](const torch::Tensor& trained, const torch::Tensor& evaluated, const torch::Tensor& x) {
      EXPECT_TRUE(torch::allclose(trained, evaluated));
      EXPECT_FALSE(torch::allclose(trained, x));
    };

TEST_P(Dropout, OfAttentionIsOfItsWeights) {
  of_attention(GetParam(), kAttention, kOnlyBiasLeft);
  of_output(GetParam(), kAttention, kNothingGone);
}

TEST_P(Dropout, OfHiddenStatesIsOfWhatIsAdded) {
  of_attention(GetParam(), kHidden, kUpdateGone);
  of_output(GetParam(), kHidden, kUpdateGone);
}

TEST_P(Dropout, OfIntermediateStatesIsBetweenTheProducts) {
  of_attention(GetParam(), kIntermediate, kNothingGone);
  of_output(GetParam(), kIntermediate, kOnlyBiasLeft);
}

TEST_P(Dropout, OfEmbeddingsIsThatOfHiddenStates) {
  for (const Probability which : {kHidden, kAttention}) {
    on_ranks(GetParam(), [&](const nn::TensorParallel&) {
      auto head = seeded(2, [&] { return nn::DistributedTransformerLMHead(dropping(which)); });
      const torch::NoGradGuard no_grad;
      nn::LMHeadInputs inputs;
      inputs.input_ids = torch::arange(8).view({2, 4});
      const bool nothing_left = head->run(inputs).abs().max().item<float>() == 0;
      EXPECT_EQ(nothing_left, which == kHidden);
      head->eval();
      EXPECT_GT(head->run(inputs).abs().max().item<float>(), 0);
    });
  }
}

struct TypedImpl : nn::DistributedModule {
  explicit TypedImpl(const nn::ParameterCreation& how) {
    const auto create = nn::parameter_creation_scope(*this, how);
    weight = create.initialize_with_input_partition("weight", {4, 6});
    whole = create.initialize_whole("whole", {4});
  }
  torch::Tensor weight, whole;
};

TEST(ParameterCreation, TheDtypeIsTheOneThatIsNamed) {
  EXPECT_EQ(TypedImpl({}).weight.scalar_type(), torch::kFloat);
  nn::ParameterCreation how;
  for (const auto dtype : {torch::kDouble, torch::kBFloat16}) {
    how.dtype = dtype;
    const TypedImpl typed(how);
    EXPECT_EQ(typed.weight.scalar_type(), dtype);
    EXPECT_EQ(typed.whole.scalar_type(), dtype);
  }
}

} // namespace
} // namespace tessera::testing
