// Layer norm, cross entropy and the language model beside torch's.
#include "tessera/nn/layers/lm_head.h"

#include "tessera/base/error.h"

#include "plain_transformer.h"
#include "ranks.h"
#include "tests/support/unused.h"

namespace tessera::testing {
namespace {

class LanguageModel : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    LanguageModel,
    ::testing::ValuesIn(all_settings()),
    [](const auto& info) { return info.param.name(); });

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    total += count;
  }
  return total;
}

/// Mean over a rank's own labels, summed over ranks: what the plain model's
/// loss is when every rank brings its samples; the plain mean when prescaled.
torch::Tensor plain_loss(
    const Setting& setting,
    const torch::Tensor& logits,
    const torch::Tensor& labels,
    const std::vector<std::int64_t>& samples) {
  const auto mean = [](const torch::Tensor& l, const torch::Tensor& t) {
    return torch::nn::functional::cross_entropy(l.flatten(0, 1), t.flatten());
  };
  if (setting.prescaled) {
    return mean(logits, labels);
  }
  torch::Tensor loss = torch::zeros({});
  std::int64_t start = 0;
  for (const std::int64_t count : samples) {
    loss = loss + mean(logits.narrow(0, start, count), labels.narrow(0, start, count));
    start += count;
  }
  return loss;
}

TEST_P(LanguageModel, LayerNormEqualsThePlainOne) {
  for (const double mean : {0.0, 300.0}) { // far from 0: sums cancel
    for (const bool rms : {false, true}) {
      const auto samples = uneven_samples(GetParam().tp);
      TransformerOptions o;
      o.hidden_size = 7;
      o.rms_layernorm = rms;
      PlainNorm plain(o);
      auto x = (fixed_random({sum_of(samples), 2, 7}, 3) + mean).detach().requires_grad_();
      const auto weights = fixed_random({sum_of(samples), 2, 7}, 4);
      // In f64, against which both are rounded.
      plain->to(torch::kDouble);
      const auto exact = x.detach().to(torch::kDouble).requires_grad_();
      const auto y = plain(exact);
      (y * weights).sum().backward();
      const auto gradients = gradients_of(*plain);
      const double tolerance = mean == 0 ? 1e-5 : 2e-3;
      on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
        nn::DistributedLayerNorm norm(
            nn::DistributedLayerNormOptions{.hidden_size = 7, .rms = rms});
        auto own = own_part(parallel, x.detach(), samples).clone().requires_grad_();
        const auto result = norm(own);
        expect_close(result, own_part(parallel, y, samples), "output", tolerance);
        (result * own_part(parallel, weights, samples)).sum().backward();
        expect_close(
            own.grad(), own_part(parallel, exact.grad(), samples), "input gradient", tolerance);
        expect_gradients(parallel, *norm, gradients, tolerance);
      });
    }
  }
}

TEST_P(LanguageModel, CrossEntropyEqualsTheOneOfWholeLogits) {
  constexpr std::int64_t kVocabulary = 10; // tp 4: 3, 3, 2, 2
  const auto samples = uneven_samples(GetParam().tp);
  const auto batch = sum_of(samples);
  auto logits = (fixed_random({batch, 3, kVocabulary}, 5) * 20).detach().requires_grad_();
  auto labels = seeded(6, [&] { return torch::randint(kVocabulary, {batch, 3}, torch::kLong); });
  labels.index_put_(
      {torch::arange(batch), torch::zeros({batch}, torch::kLong)},
      torch::full({batch}, -100, torch::kLong));
  const auto loss = plain_loss(GetParam(), logits, labels, samples);
  loss.backward();
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    nn::DistributedCrossEntropy entropy(nn::DistributedCrossEntropyOptions{kVocabulary});
    const auto range = nn::even_range(kVocabulary, parallel.size(), parallel.rank());
    auto own = logits.detach().narrow(2, range.start, range.size()).clone().requires_grad_();
    const auto found = entropy(own, own_part(parallel, labels, samples));
    found.backward();
    auto sum = found.detach().clone();
    if (!GetParam().prescaled) {
      parallel.group->all_reduce(sum);
    }
    expect_close(sum, loss, "loss");
    expect_close(
        own.grad(), logits.grad().narrow(2, range.start, range.size()), "gradient of the logits");
  });
}

TEST_P(LanguageModel, CrossEntropyThatNothingUsesGivesNoGradient) {
  constexpr std::int64_t kVocabulary = 10;
  const auto samples = uneven_samples(GetParam().tp);
  const auto batch = sum_of(samples);
  const auto logits = fixed_random({batch, 3, kVocabulary}, 5);
  const auto labels = seeded(6, [&] {
    return torch::randint(kVocabulary, {batch, 3}, torch::kLong);
  });
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    nn::DistributedCrossEntropy entropy(nn::DistributedCrossEntropyOptions{kVocabulary});
    const auto range = nn::even_range(kVocabulary, parallel.size(), parallel.rank());
    auto own = logits.narrow(2, range.start, range.size()).clone().requires_grad_();
    unused(entropy(own, own_part(parallel, labels, samples))).backward();
    EXPECT_FALSE(own.grad().defined());
  });
}

TEST_P(LanguageModel, CrossEntropyMovesTwoNumbersAPosition) {
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    const std::int64_t n = parallel.size();
    nn::DistributedCrossEntropy entropy(nn::DistributedCrossEntropyOptions{1000});
    const auto range = nn::even_range(1000, parallel.size(), parallel.rank());
    const std::int64_t own = GetParam().prescaled ? 2 * n : 2;
    const auto logits = torch::zeros({2 * n, 3, range.size()}).requires_grad_();
    const auto labels = torch::zeros({own, 3}, torch::kLong);
    const std::int64_t before = parallel.group->traffic().bytes;
    entropy(logits, labels).backward();
    const std::int64_t positions = 2 * n * 3;
    const std::int64_t expected =
        (n - 1) * 2 * 4 * positions +
        (GetParam().prescaled || n == 1 ? 0 : (n - 1) * (8 + 8 * own * 3 + 4 * own * 3));
    EXPECT_EQ(parallel.group->traffic().bytes - before, expected);
  });
}

TEST(CrossEntropyErrors, NameTheTarget) {
  nn::DistributedCrossEntropy entropy(nn::DistributedCrossEntropyOptions{4});
  EXPECT_THROW(entropy(torch::zeros({1, 4}), torch::tensor({4})), ShapeError);
  EXPECT_THROW(entropy(torch::zeros({1, 3}), torch::tensor({1})), ShapeError);
}

void compare_model(const Setting& setting, const TransformerOptions& options, bool every_input) {
  const auto samples = uneven_samples(setting.tp);
  const auto batch = sum_of(samples);
  constexpr std::int64_t kLength = 4;
  nn::LMHeadInputs whole;
  seeded(9, [&] {
    whole.input_ids = torch::randint(options.vocab_size, {batch, kLength}, torch::kLong);
    whole.labels = torch::randint(options.vocab_size, {batch, kLength}, torch::kLong);
    if (every_input) {
      whole.attention_mask = torch::zeros({batch, kLength}, torch::kLong);
      whole.attention_mask.select(1, kLength - 1).fill_(1);
      whole.token_type_ids =
          torch::randint(options.num_token_types, {batch, kLength}, torch::kLong);
      whole.position_ids = torch::randint(options.num_positions, {batch, kLength}, torch::kLong);
    }
    if (options.add_cross_attention) {
      whole.cross_states = torch::randn({batch, 3, options.hidden_size});
      whole.cross_mask = torch::zeros({batch, 3}, torch::kLong);
      whole.cross_mask.select(1, 0).fill_(1);
    }
    return 0;
  });
  auto plain = seeded(10, [&] { return PlainLMHead(options); });
  const auto logits = plain(
      whole.input_ids,
      whole.attention_mask,
      whole.token_type_ids,
      whole.position_ids,
      whole.cross_states,
      whole.cross_mask);
  const auto loss = plain_loss(setting, logits, whole.labels, samples);
  loss.backward();
  const auto gradients = gradients_of(*plain);
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    auto model = seeded(10, [&] { return nn::DistributedTransformerLMHead(options); });
    expect_parts_of(*model, parameters_of(*plain));
    const auto mine = [&](const torch::Tensor& t) { return own_part(parallel, t, samples); };
    nn::LMHeadInputs own{
        mine(whole.input_ids),
        mine(whole.attention_mask),
        mine(whole.token_type_ids),
        mine(whole.position_ids),
        mine(whole.cross_states),
        mine(whole.cross_mask),
        {}};
    expect_close(model->run(own), mine(logits), "logits");
    own.labels = mine(whole.labels);
    const auto found = model->run(own);
    found.backward();
    auto sum = found.detach().clone();
    if (!setting.prescaled) {
      parallel.group->all_reduce(sum);
    }
    expect_close(sum, loss, "loss");
    expect_gradients(parallel, *model, gradients);
  });
}

TransformerOptions gpt_like() {
  TransformerOptions o;
  o.num_attention_heads = 4;
  o.attention_head_size = 2;
  o.hidden_size = 8;
  o.intermediate_size = 12;
  o.attention_dropout_prob = 0;
  o.hidden_dropout_prob = 0;
  o.num_layers = 2;
  o.vocab_size = 12;
  o.num_positions = 6;
  o.causal_mask_size = 6;
  o.pre_layernorm = true;
  o.post_layernorm = false;
  o.initializer_range = 0.5;
  o.activation = "gelu_tanh";
  return o;
}

TEST_P(LanguageModel, EqualsThePlainModel) {
  compare_model(GetParam(), gpt_like(), false);
}

TEST_P(LanguageModel, EqualsThePlainModelWithEveryInput) {
  auto options = gpt_like();
  options.causal_mask_size = TorchOptional<std::int64_t>();
  options.post_layernorm = true;
  options.hidden_size = 7;
  options.vocab_size = 13;
  options.num_token_types = 3;
  options.add_cross_attention = true;
  compare_model(GetParam(), options, true);
}

TEST_P(LanguageModel, WithoutHeadReturnsHiddenStates) {
  auto options = gpt_like();
  options.add_lm_head = false;
  on_ranks(GetParam(), [&](const nn::TensorParallel&) {
    auto model = seeded(10, [&] { return nn::DistributedTransformerLMHead(options); });
    nn::LMHeadInputs inputs;
    inputs.input_ids = torch::ones({2, 5}, torch::kLong);
    EXPECT_EQ(model->run(inputs).sizes(), at::IntArrayRef({2, 5, 8}));
    inputs.labels = inputs.input_ids;
    EXPECT_THROW(model->run(inputs), ShapeError);
    inputs.labels = torch::Tensor();
    inputs.input_ids = torch::ones({2, 7}, torch::kLong);
    EXPECT_THROW(model->run(inputs), ShapeError);
  });
}

} // namespace
} // namespace tessera::testing
