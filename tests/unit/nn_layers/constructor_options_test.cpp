// What the constructors' options do where a comparison with plain layers cannot see it: defaults,
// dropout of embeddings, the dtype of parameters.
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/layer_norm.h"
#include "tessera/nn/layers/linear.h"
#include "tessera/nn/layers/lm_head.h"
#include "tessera/nn/parallel/parameter_creation.h"

#include "ranks.h"

namespace tessera::testing {
namespace {

using nn::TransformerOptions;

// Source: Karakus et al. 2021, appendix I.3 and I.6. Those of the transformer:
// layer_options_test.cpp.
TEST(Defaults, AreThoseOfThePaper) {
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

// A language model's embeddings are dropped as hidden states are: nothing is left of them, so the
// last norm has nothing to show.
TEST(Dropout, OfEmbeddingsIsThatOfHiddenStates) {
  TransformerOptions options;
  options.num_attention_heads = 4;
  options.attention_head_size = 3;
  options.hidden_size = 8;
  options.intermediate_size = 16;
  options.pre_layernorm = true;
  options.post_layernorm = false;
  options.num_layers = 1;
  options.num_positions = 6;
  options.vocab_size = 11;
  for (const bool hidden : {true, false}) {
    options.attention_dropout_prob = hidden ? 0 : 1 - 1e-9;
    options.hidden_dropout_prob = hidden ? 1 - 1e-9 : 0;
    for (const Setting& setting : all_settings()) {
      on_ranks(setting, [&](const nn::TensorParallel&) {
        auto head = seeded(2, [&] { return nn::DistributedTransformerLMHead(options); });
        const torch::NoGradGuard no_grad;
        nn::LMHeadInputs inputs;
        inputs.input_ids = torch::arange(8).view({2, 4});
        EXPECT_EQ(head->run(inputs).abs().max().item<float>() == 0, hidden) << setting;
        head->eval();
        EXPECT_GT(head->run(inputs).abs().max().item<float>(), 0) << setting;
      });
    }
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
