#include "models/gpt.h"

#include <cmath>
#include <set>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/registry.h"

namespace tessera::models {
namespace {

GptOptions small() {
  GptOptions options;
  options.vocab_size = 17;
  options.n_positions = 8;
  options.n_embd = 12;
  options.n_layer = 2;
  options.n_head = 3;
  options.dropout = 0;
  return options;
}

at::Tensor some_ids() {
  return torch::tensor({{1, 5, 2, 16, 0, 3}, {4, 4, 9, 8, 7, 15}}, at::kLong);
}

TEST(Gpt, ParameterNamesAndShapesAreThoseOfGpt2Checkpoints) {
  Gpt model(small());
  std::vector<std::string> expected{
      "transformer.wte.weight [17, 12]", "transformer.wpe.weight [8, 12]"};
  for (const std::string block : {"transformer.h.0.", "transformer.h.1."}) {
    for (const char* rest :
         {"ln_1.weight [12]",
          "ln_1.bias [12]",
          "attn.c_attn.weight [12, 36]",
          "attn.c_attn.bias [36]",
          "attn.c_proj.weight [12, 12]",
          "attn.c_proj.bias [12]",
          "ln_2.weight [12]",
          "ln_2.bias [12]",
          "mlp.c_fc.weight [12, 48]",
          "mlp.c_fc.bias [48]",
          "mlp.c_proj.weight [48, 12]",
          "mlp.c_proj.bias [12]"}) {
      expected.push_back(block + rest);
    }
  }
  expected.emplace_back("transformer.ln_f.weight [12]");
  expected.emplace_back("transformer.ln_f.bias [12]");
  expected.emplace_back("lm_head.weight [17, 12]");
  std::vector<std::string> found;
  for (const auto& item : model->named_parameters()) {
    found.push_back(tessera::str(item.key(), " ", item.value().sizes()));
  }
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(model->named_buffers().is_empty());
  EXPECT_TRUE(model->named_parameters()["lm_head.weight"].is_same(
      model->named_parameters()["transformer.wte.weight"]));
}

// One number at a time, in f64, straight from the definition.
at::Tensor naive_attention(
    const at::Tensor& x_BSI,
    const torch::OrderedDict<std::string, at::Tensor>& p,
    int heads) {
  const auto batch = x_BSI.size(0);
  const auto positions = x_BSI.size(1);
  const auto width = x_BSI.size(2);
  const auto d = width / heads;
  const auto qkv = x_BSI.matmul(p["c_attn.weight"]) + p["c_attn.bias"];
  const auto a = qkv.accessor<double, 3>();
  auto joined = torch::zeros_like(x_BSI);
  auto out = joined.accessor<double, 3>();
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < heads; ++h) {
      for (int s = 0; s < positions; ++s) {
        std::vector<double> weights(s + 1);
        double total = 0;
        for (int t = 0; t <= s; ++t) {
          double score = 0;
          for (int i = 0; i < d; ++i) {
            score += a[b][s][h * d + i] * a[b][t][width + h * d + i];
          }
          weights[t] = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += weights[t];
        }
        for (int t = 0; t <= s; ++t) {
          for (int i = 0; i < d; ++i) {
            out[b][s][h * d + i] += weights[t] / total * a[b][t][2 * width + h * d + i];
          }
        }
      }
    }
  }
  return joined.matmul(p["c_proj.weight"]) + p["c_proj.bias"];
}

TEST(Gpt, AttentionEqualsTheDefinition) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  GptAttention attention(small());
  attention->to(at::kDouble);
  for (auto& parameter : attention->parameters()) {
    parameter.normal_(0, 0.5);
  }
  const auto x = torch::randn({2, 5, 12}, at::kDouble);
  const auto expected = naive_attention(x, attention->named_parameters(), small().n_head);
  EXPECT_TRUE(torch::allclose(attention(x), expected, 1e-10, 1e-12));
}

TEST(Gpt, ALaterTokenDoesNotChangeEarlierLogits) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  Gpt model(small());
  const auto ids = some_ids();
  auto changed = ids.clone();
  changed.select(1, 4).fill_(11);
  const auto a = model(ids);
  const auto b = model(changed);
  EXPECT_TRUE(torch::equal(a.slice(1, 0, 4), b.slice(1, 0, 4)));
  EXPECT_FALSE(torch::allclose(a.slice(1, 4), b.slice(1, 4)));
}

TEST(Gpt, InitialisationFollowsThePaper) {
  torch::manual_seed(3);
  GptOptions options = small();
  options.n_embd = 192;
  options.n_head = 6;
  options.n_layer = 8;
  Gpt model(options);
  const auto p = model->named_parameters();
  const auto deviation = [&](const char* name) { return p[name].std().item<double>(); };
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_attn.weight"), 0.02, 4e-4);
  EXPECT_NEAR(deviation("transformer.wte.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_proj.weight"), 0.005, 1e-4);
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_proj.weight"), 0.005, 1e-4);
  EXPECT_EQ(p["transformer.h.3.mlp.c_fc.bias"].abs().max().item<double>(), 0);
  // An untrained model knows nothing of the next token: the loss is the log of
  // the vocabulary.
  const auto loss = cross_entropy(model(some_ids().slice(1, 0, 5)), some_ids().slice(1, 1, 6));
  EXPECT_NEAR(loss.item<double>(), std::log(17.0), 0.3);
}

TEST(Gpt, IgnoredTargetsDoNotCount) {
  torch::manual_seed(4);
  const auto logits = torch::randn({2, 3, 5}).requires_grad_();
  auto targets = torch::tensor({{1, 4, 0}, {2, 2, 3}}, at::kLong);
  targets[0][1] = kIgnoredTarget;
  targets[1] = kIgnoredTarget;
  const auto loss = cross_entropy(logits, targets);
  const auto log_p = logits.log_softmax(-1);
  const auto expected = -(log_p[0][0][1] + log_p[0][2][0]) / 2;
  EXPECT_NEAR(loss.item<float>(), expected.item<float>(), 1e-6);
  loss.backward();
  EXPECT_EQ(logits.grad()[0][1].abs().sum().item<float>(), 0);
  EXPECT_EQ(logits.grad()[1].abs().sum().item<float>(), 0);
  EXPECT_GT(logits.grad()[0][0].abs().sum().item<float>(), 0);
}

TEST(Gpt, Bfloat16StaysNearF32) {
  torch::manual_seed(5);
  Gpt model(small());
  const auto exact = cross_entropy(model(some_ids()), some_ids());
  model->to(at::kBFloat16);
  const auto logits = model(some_ids());
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  const auto loss = cross_entropy(logits, some_ids());
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<float>(), exact.item<float>(), 0.02);
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

TEST(Gpt, DropoutActsOnlyInTraining) {
  torch::manual_seed(6);
  GptOptions options = small();
  options.dropout = 0.5;
  Gpt model(options);
  EXPECT_FALSE(torch::equal(model(some_ids()), model(some_ids())));
  model->eval();
  EXPECT_TRUE(torch::equal(model(some_ids()), model(some_ids())));
}

TEST(Gpt, TooLongASequenceIsAClearError) {
  Gpt model(small());
  try {
    model(torch::zeros({1, 9}, at::kLong));
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("[1, 9]"));
    EXPECT_THAT(error.what(), testing::HasSubstr("at most 8"));
  }
}

TEST(Gpt, LearnsToRepeatASequence) {
  torch::manual_seed(7);
  Gpt model(small());
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  const auto ids = some_ids();
  float first = 0;
  float last = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    const auto loss = cross_entropy(model(ids.slice(1, 0, 5)), ids.slice(1, 1, 6));
    loss.backward();
    optimizer.step();
    last = loss.item<float>();
    first = step == 0 ? last : first;
  }
  EXPECT_GT(first, 2.5);
  EXPECT_LT(last, 0.1);
}

} // namespace
} // namespace tessera::models
