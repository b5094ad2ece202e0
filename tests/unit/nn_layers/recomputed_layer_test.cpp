// Transformer layers whose attention is recomputed, or all but their products: the numbers are
// those without it, to the bit, and less is kept.
#include "tessera/base/error.h"
#include "tessera/nn/module/activation_checkpointing.h"
#include "tessera/recompute/attentions.h"

#include "layer_comparison.h"
#include "tests/support/live_bytes.h"

namespace tessera::testing {
namespace {

enum class How { kNot, kAttention, kSelective, kWhole };

struct Found {
  torch::Tensor y;
  std::vector<torch::Tensor> gradients; // of the input, then of the parameters
  std::int64_t kept = 0; // bytes between forward and backward, without the result
};

/// A layer whose parameters are the same every time.
nn::DistributedTransformerLayer
make_layer(const TransformerOptions& options, How how, at::ScalarType dtype = at::kFloat) {
  TransformerOptions wanted = options;
  wanted.checkpoint_attentions = how == How::kAttention;
  nn::DistributedTransformerLayer layer =
      seeded(5, [&] { return nn::DistributedTransformerLayer(wanted); });
  layer->to(dtype);
  return layer;
}

/// One forward and backward of a layer on this rank.
Found run_layer(
    const nn::DistributedTransformerLayer& layer,
    How how,
    const torch::Tensor& input,
    const torch::Tensor& mask) {
  nn::Sequential around{layer};
  if (how == How::kSelective || how == How::kWhole) {
    set_activation_checkpointing(
        around, {.strategy = how == How::kSelective ? "selective" : "each"});
  }
  const torch::Tensor x = input.clone().requires_grad_();
  const torch::Tensor states = layer->options.add_cross_attention ? input * 2 : torch::Tensor();
  Found found;
  {
    const auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    found.y = std::get<0>(around->forward_as<nn::TransformerState>(x, mask, states, at::Tensor()));
    found.kept = live->bytes - found.y.numel() * found.y.element_size();
  }
  found.y.to(torch::kFloat).pow(2).sum().backward();
  found.gradients.push_back(x.grad());
  for (const auto& parameter : layer->parameters()) {
    found.gradients.push_back(parameter.grad());
  }
  return found;
}

void expect_same(const Found& found, const Found& wanted, const std::string& what) {
  EXPECT_TRUE(found.y.equal(wanted.y)) << what;
  ASSERT_EQ(found.gradients.size(), wanted.gradients.size());
  for (std::size_t i = 0; i < wanted.gradients.size(); ++i) {
    ASSERT_EQ(found.gradients[i].defined(), wanted.gradients[i].defined()) << what << ", " << i;
    EXPECT_TRUE(!wanted.gradients[i].defined() || found.gradients[i].equal(wanted.gradients[i]))
        << what << ", gradient " << i;
  }
}

std::vector<std::pair<std::string, TransformerOptions>> layers() {
  TransformerOptions gpt = small_options();
  gpt.attention_head_size = 4;
  gpt.causal_mask_size = 16;
  gpt.pre_layernorm = true;
  gpt.post_layernorm = false;
  TransformerOptions llama = gpt;
  llama.num_attention_heads = 8;
  llama.num_key_value_heads = 4;
  llama.rotary_pct = 1;
  llama.rms_layernorm = true;
  llama.gated_output = true;
  llama.activation = "silu";
  llama.linear_bias = false;
  TransformerOptions bert = odd_options();
  bert.use_alibi = true;
  TransformerOptions crossed = gpt;
  crossed.add_cross_attention = true;
  TransformerOptions side = gpt;
  side.parallel_attention_output = true;
  side.attention_in_fp32 = true;
  TransformerOptions blocks = gpt;
  blocks.flash_attention = true;
  return {
      {"gpt", gpt},
      {"llama", llama},
      {"bert", bert},
      {"crossed", crossed},
      {"side by side", side},
      {"in blocks", blocks}};
}

TEST(RecomputedLayer, DropoutAndTypesOnOneRank) {
  on_ranks({1}, [&](const nn::TensorParallel& /*parallel*/) {
    for (const auto& layer : layers()) {
      const std::string& name = layer.first;
      auto options = layer.second;
      options.attention_dropout_prob = 0.25;
      options.hidden_dropout_prob = 0.25;
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const auto input = fixed_random({3, 8, options.hidden_size}, 3).to(dtype);
        const auto mask = fixed_random({3, 1, 8, 8}, 4).to(dtype);
        const auto run = [&](How how) {
          torch::manual_seed(21);
          return run_layer(make_layer(options, how, dtype), how, input, mask);
        };
        const Found wanted = run(How::kNot);
        const std::string what = name + (dtype == at::kFloat ? "" : ", bf16");
        expect_same(run(How::kAttention), wanted, what + ", attention");
        expect_same(run(How::kSelective), wanted, what + ", selective");
        expect_same(run(How::kWhole), wanted, what + ", whole");
      }
    }
  });
}

class RecomputedLayers : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    RecomputedLayers,
    ::testing::ValuesIn(all_settings()),
    [](const auto& info) { return info.param.name(); });

// Without dropout: threads share libtorch's generator. Processes: tests/mpi/recompute.
TEST_P(RecomputedLayers, NumbersAreThoseWithout) {
  const Setting setting = GetParam();
  for (const auto& [layer_name, layer_options] : layers()) {
    const std::string name = layer_name;
    const TransformerOptions options = layer_options;
    if (nn::head_groups(options).groups < setting.tp) {
      continue;
    }
    on_ranks(setting, [&](const nn::TensorParallel& parallel) {
      const auto samples = uneven_samples(setting.tp);
      std::int64_t batch = 0;
      for (const std::int64_t count : samples) {
        batch += count;
      }
      const auto all = fixed_random({batch, 8, options.hidden_size}, 3);
      const auto own = own_part(parallel, all, samples);
      // All layers first: the backward of a region restores the generator that threads share.
      std::vector<std::pair<How, nn::DistributedTransformerLayer>> ways;
      for (const How how : {How::kNot, How::kAttention, How::kSelective, How::kWhole}) {
        ways.emplace_back(how, make_layer(options, how));
      }
      Found wanted;
      for (const auto& [how, layer] : ways) {
        const Found found = run_layer(layer, how, own, {});
        if (how == How::kNot) {
          wanted = found;
        } else {
          expect_same(found, wanted, tessera::str(name, ", way ", static_cast<int>(how)));
        }
      }
    });
  }
}

// Letters: B samples, S positions, I channels, n heads of this rank; units are B S I numbers.
TEST(RecomputedLayer, KeepsWhatItShould) {
  TransformerOptions o = layers().front().second;
  o.hidden_size = 64;
  o.num_attention_heads = 4;
  o.attention_head_size = 16;
  o.intermediate_size = 256;
  o.causal_mask_size = 256;
  o.attention_dropout_prob = 0.1;
  o.hidden_dropout_prob = 0.1;
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kPositions = 256;
  const std::int64_t unit = kBatch * kPositions * o.hidden_size * 4;
  const std::int64_t scores = kBatch * o.num_attention_heads * kPositions * kPositions * 4;
  on_ranks({1}, [&](const nn::TensorParallel& /*parallel*/) {
    const auto input = fixed_random({kBatch, kPositions, o.hidden_size}, 3);
    const auto kept = [&](How how) { return run_layer(make_layer(o, how), how, input, {}).kept; };
    const std::int64_t all = kept(How::kNot);
    const std::int64_t attention = kept(How::kAttention);
    const std::int64_t selective = kept(How::kSelective);
    // Softmax, mask of the dropout, weights; q, k, v come as copies and go as one product.
    EXPECT_GE(all, 2 * scores + 12 * unit);
    EXPECT_LE(attention, all - 2 * scores) << "the scores are kept";
    EXPECT_LE(attention, 20 * unit);
    // query_key_value 3, context 1, dense 1, dense1 4; the input came from outside, and the result
    // of dense2 is what the layer returns. Of the masks of dropout a bit for an element.
    const std::int64_t masks = scores / 32 + 2 * unit / 32;
    EXPECT_GE(selective, 9 * unit + masks);
    EXPECT_LE(selective, 9 * unit + masks + unit / 4);
  });
}

TEST(RecomputedLayer, TheKeyIsForAllLayers) {
  on_ranks({1}, [&](const nn::TensorParallel& /*parallel*/) {
    const TransformerOptions gpt = layers().front().second;
    const auto input = fixed_random({2, 8, gpt.hidden_size}, 3);
    recompute::set_attentions(true);
    run_layer(make_layer(gpt, How::kNot), How::kNot, input, {});
    EXPECT_EQ(recompute::attentions_run(), 1);
    // In blocks: it recomputes by itself.
    run_layer(make_layer(layers().back().second, How::kNot), How::kNot, input, {});
    EXPECT_EQ(recompute::attentions_run(), 1);
    recompute::set_attentions(false);
  });
}

} // namespace
} // namespace tessera::testing
