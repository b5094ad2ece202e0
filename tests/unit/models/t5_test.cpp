#include "models/t5.h"

#include <cmath>
#include <map>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "models/load.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

T5Options small_t5() {
  T5Options options;
  options.vocab_size = 19;
  options.d_model = 12;
  options.d_kv = 5; // heads * d_kv is not d_model, as in the largest models
  options.d_ff = 20;
  options.num_layers = 2;
  options.num_decoder_layers = 1;
  options.num_heads = 3;
  options.dropout_rate = 0;
  return options;
}

at::Tensor ids(std::initializer_list<std::int64_t> values) {
  return torch::tensor(std::vector<std::int64_t>(values), at::kLong).unsqueeze(0);
}

TEST(T5, ParameterNamesAndShapesAreThoseOfTheCheckpoints) {
  T5 model(small_t5());
  std::vector<std::string> found;
  for (const auto& item : model->named_parameters()) {
    found.push_back(tessera::str(item.key(), " ", item.value().sizes()));
  }
  std::vector<std::string> expected{"shared.weight [19, 12]"};
  const auto attention = [&](const std::string& at, bool with_bias) {
    for (const char* name : {"q", "k", "v"}) {
      expected.push_back(at + name + ".weight [15, 12]");
    }
    expected.push_back(at + "o.weight [12, 15]");
    if (with_bias) {
      expected.push_back(at + "relative_attention_bias.weight [32, 3]");
    }
  };
  const auto feed_forward = [&](const std::string& at) {
    expected.push_back(at + "DenseReluDense.wi.weight [20, 12]");
    expected.push_back(at + "DenseReluDense.wo.weight [12, 20]");
    expected.push_back(at + "layer_norm.weight [12]");
  };
  for (const bool first : {true, false}) {
    const std::string block = first ? "encoder.block.0.layer." : "encoder.block.1.layer.";
    attention(block + "0.SelfAttention.", first);
    expected.push_back(block + "0.layer_norm.weight [12]");
    feed_forward(block + "1.");
  }
  expected.emplace_back("encoder.final_layer_norm.weight [12]");
  const std::string block = "decoder.block.0.layer.";
  attention(block + "0.SelfAttention.", true);
  expected.push_back(block + "0.layer_norm.weight [12]");
  attention(block + "1.EncDecAttention.", false);
  expected.push_back(block + "1.layer_norm.weight [12]");
  feed_forward(block + "2.");
  expected.emplace_back("decoder.final_layer_norm.weight [12]");
  expected.emplace_back("lm_head.weight [19, 12]");
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
  EXPECT_TRUE(model->named_parameters()["lm_head.weight"].is_same(
      model->named_parameters()["shared.weight"]));
}

TEST(T5, VersionOneOneIsGatedAndHasItsOwnOutputLayer) {
  torch::manual_seed(1);
  T5Options options = small_t5();
  options.feed_forward_proj = "gated-silu";
  T5DenseReluDense gated(options);
  const auto weights = gated->named_parameters();
  ASSERT_EQ(weights.size(), 3U);
  const at::Tensor x = torch::randn({2, 3, 12});
  const at::Tensor inner =
      torch::silu(x.matmul(weights["wi_0.weight"].t())) * x.matmul(weights["wi_1.weight"].t());
  EXPECT_TRUE(torch::allclose(gated(x), inner.matmul(weights["wo.weight"].t()), 1e-5, 1e-6));
  const auto logits_of = [](const T5Options& of) {
    torch::manual_seed(2);
    T5 model(of);
    return model(ids({1, 2, 3}), ids({0, 4}));
  };
  T5Options unscaled = options;
  unscaled.scale_decoder_outputs = false;
  EXPECT_TRUE(
      torch::allclose(logits_of(unscaled), logits_of(options) * std::sqrt(12.0), 1e-4, 1e-5));
  options.tie_word_embeddings = false;
  T5 untied(options);
  EXPECT_FALSE(untied->named_parameters()["lm_head.weight"].is_same(
      untied->named_parameters()["shared.weight"]));
  const at::Tensor before = logits_of(options);
  options.scale_decoder_outputs = false; // of tied ones alone
  EXPECT_TRUE(before.equal(logits_of(options)));
}

// By hand, 32 buckets up to a distance of 128. Both ways: 16 a sign, 8 exact,
// then 8 + floor(8 ln(n/8) / ln(16)).
TEST(T5, RelativePositionBuckets) {
  const auto both = [](std::int64_t n) { return relative_position_bucket(n, true, 32, 128); };
  EXPECT_EQ(both(0), 0);
  EXPECT_EQ(both(-1), 1);
  EXPECT_EQ(both(-7), 7);
  EXPECT_EQ(both(-8), 8); // ln(1) = 0
  EXPECT_EQ(both(-12), 9); // 8 * 0.405 / 2.773 = 1.17
  EXPECT_EQ(both(-20), 10); // 2.64
  EXPECT_EQ(both(-100), 15); // 7.29
  EXPECT_EQ(both(-5000), 15);
  EXPECT_EQ(both(1), 17);
  EXPECT_EQ(both(20), 26);
  EXPECT_EQ(both(5000), 31);
  // Backwards: 32 for one sign, 16 exact, then 16 + floor(16 ln(n/16) / ln(8)).
  const auto back = [](std::int64_t n) { return relative_position_bucket(n, false, 32, 128); };
  EXPECT_EQ(back(3), 0);
  EXPECT_EQ(back(0), 0);
  EXPECT_EQ(back(-15), 15);
  EXPECT_EQ(back(-20), 17); // 16 * 0.223 / 2.079 = 1.72
  EXPECT_EQ(back(-64), 26); // 10.67
  EXPECT_EQ(back(-128), 31);
  EXPECT_EQ(back(-4000), 31);
}

TEST(T5, PositionBiasHoldsTheBucketOfEveryPair) {
  torch::manual_seed(1);
  const T5Options options = small_t5();
  T5Attention attention(options, T5Attends::kBothWays, true);
  const auto table = attention->named_parameters()["relative_attention_bias.weight"];
  const auto bias = attention->position_bias(25, {});
  ASSERT_EQ(bias.sizes(), (std::vector<std::int64_t>{1, 3, 25, 25}));
  for (std::int64_t s = 0; s < 25; ++s) {
    for (std::int64_t t = 0; t < 25; ++t) {
      const auto bucket = relative_position_bucket(t - s, true, 32, 128);
      for (std::int64_t h = 0; h < 3; ++h) {
        ASSERT_EQ(bias[0][h][s][t].item<float>(), table[bucket][h].item<float>()) << s << " " << t;
      }
    }
  }
}

TEST(T5, AttentionEqualsTheDefinition) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  const T5Options options = small_t5();
  T5Attention attention(options, T5Attends::kEncoder, false);
  attention->to(at::kDouble);
  const auto p = attention->named_parameters();
  const auto x = torch::randn({2, 4, 12}, at::kDouble);
  const auto source = torch::randn({2, 6, 12}, at::kDouble);
  const auto found = attention->forward(x, source, torch::zeros({2, 1, 1, 6}, at::kDouble));
  for (int b = 0; b < 2; ++b) {
    std::vector<at::Tensor> heads;
    for (int h = 0; h < 3; ++h) {
      const auto rows = [&](const char* name, const at::Tensor& of) {
        return of[b].matmul(p[name].slice(0, 5 * h, 5 * h + 5).t());
      };
      const auto scores = rows("q.weight", x).matmul(rows("k.weight", source).t());
      heads.push_back((scores.exp() / scores.exp().sum(1, true)).matmul(rows("v.weight", source)));
    }
    const auto expected = torch::cat(heads, 1).matmul(p["o.weight"].t());
    EXPECT_TRUE(torch::allclose(found[b], expected, 1e-9, 1e-12));
  }
}

TEST(T5, LayerNormHasNoMeanAndSumsInF32) {
  T5LayerNorm norm(small_t5());
  const auto x = torch::randn({2, 3, 12}) + 4;
  const auto expected = x / (x.square().mean(-1, true) + 1e-6).sqrt();
  EXPECT_TRUE(torch::allclose(norm(x), expected, 1e-5, 1e-6));
  norm->to(at::kBFloat16);
  const auto rounded = norm(x.to(at::kBFloat16));
  EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(torch::allclose(rounded.to(at::kFloat), expected, 2e-2, 1e-2));
}

TEST(T5, DecoderSeesOnlyThePastAndTheWholeEncoder) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  T5 model(small_t5());
  const auto source = ids({3, 1, 4, 1, 5});
  const auto a = model(source, ids({0, 7, 8, 9}));
  const auto b = model(source, ids({0, 7, 8, 2}));
  EXPECT_EQ(a.sizes(), (std::vector<std::int64_t>{1, 4, 19}));
  EXPECT_TRUE(torch::equal(a.slice(1, 0, 3), b.slice(1, 0, 3)));
  EXPECT_FALSE(torch::allclose(a.slice(1, 3), b.slice(1, 3)));
  const auto c = model(ids({3, 1, 4, 1, 6}), ids({0, 7, 8, 9}));
  EXPECT_FALSE(torch::allclose(a.slice(1, 0, 1), c.slice(1, 0, 1)));
}

TEST(T5, PaddingDoesNotCount) {
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  T5 model(small_t5());
  const auto mask = ids({1, 1, 1, 0, 0});
  const auto decoder_ids = ids({0, 7});
  const auto plain = model(ids({3, 1, 4}), decoder_ids);
  const auto padded = model(ids({3, 1, 4, 9, 9}), decoder_ids, mask);
  EXPECT_TRUE(torch::allclose(plain, padded, 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(plain, model(ids({3, 1, 4, 9, 9}), decoder_ids), 1e-4));
}

TEST(T5, Bfloat16StaysNearF32AndEveryParameterLearns) {
  torch::manual_seed(5);
  T5 model(small_t5());
  const auto targets = ids({4, 8, 12, kIgnoredTarget});
  const auto decoder_ids = shift_right(targets, small_t5());
  EXPECT_TRUE(torch::equal(decoder_ids, ids({0, 4, 8, 12})));
  const auto source = ids({3, 1, 4, 1, 5});
  const auto exact = cross_entropy(model(source, decoder_ids), targets);
  model->to(at::kBFloat16);
  const auto loss = cross_entropy(model(source, decoder_ids), targets);
  EXPECT_NEAR(loss.item<float>(), exact.item<float>(), 0.05);
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<float>(), 0) << item.key();
  }
}

TEST(T5, InitialisationFollowsThePublishedFactors) {
  torch::manual_seed(6);
  T5Options options;
  options.vocab_size = 64;
  options.num_layers = 1;
  T5 model(options);
  const auto p = model->named_parameters();
  const auto expect_deviation = [&](const std::string& name, double value) {
    EXPECT_NEAR(p[name].std().item<double>(), value, value * 0.03) << name;
  };
  const std::string block = "encoder.block.0.layer.";
  expect_deviation("shared.weight", 1.0);
  expect_deviation(block + "0.SelfAttention.q.weight", 1 / std::sqrt(512 * 64));
  expect_deviation(block + "0.SelfAttention.k.weight", 1 / std::sqrt(512));
  expect_deviation(block + "0.SelfAttention.o.weight", 1 / std::sqrt(512));
  expect_deviation(block + "1.DenseReluDense.wi.weight", 1 / std::sqrt(512));
  expect_deviation(block + "1.DenseReluDense.wo.weight", 1 / std::sqrt(2048));
}

// A second table of embeddings is refused without naming an option that would not help; of a second
// output layer one would.
TEST(T5, ASecondEmbeddingIsRefused) {
  T5 model(small_t5());
  std::map<std::string, at::Tensor> file;
  for (const auto& item : model->named_parameters()) {
    file[item.key()] = item.value().detach();
  }
  const auto refusal = [&](const std::string& second) {
    auto two = file;
    two[second] = torch::randn({19, 12});
    return tests::message_of<CheckpointError>([&] { load_parameters(*model, two, "file"); });
  };
  for (const std::string stack : {"encoder", "decoder"}) {
    const std::string second = stack + ".embed_tokens.weight";
    EXPECT_THAT(
        refusal(second),
        testing::AllOf(
            testing::HasSubstr(second),
            testing::HasSubstr("shared.weight"),
            testing::HasSubstr("one table of embeddings"),
            testing::Not(testing::HasSubstr("tie_word_embeddings"))));
  }
  EXPECT_THAT(refusal("lm_head.weight"), testing::HasSubstr("tie_word_embeddings: false"));
}

} // namespace
} // namespace tessera::models
