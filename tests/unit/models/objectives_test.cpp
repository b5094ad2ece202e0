#include <array>
#include <filesystem>
#include <map>
#include <numeric>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "models/data/sentencepiece_model.h"
#include "models/data/tokenizer.h"
#include "models/layers.h"
#include "models/objectives/draws.h"
#include "models/objectives/load.h"
#include "models/objectives/make_objective.h"
#include "models/objectives/masked.h"
#include "models/objectives/span_corruption.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<std::int64_t>;

template <typename Work>
std::string message_of(Work work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

Ids counting(std::int64_t count, std::int64_t first = 0) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// 1000 ids of which the first four are marks.
TokenTable table_of_1000() {
  TokenTable table;
  table.tokens = 1000;
  table.special.assign(1000, false);
  std::fill(table.special.begin(), table.special.begin() + 4, true);
  table.named = {{"<s>", 1}, {"</s>", 2}, {"<pad>", 3}};
  return table;
}

constexpr MaskTokens kMarks{.begin = 1, .end = 2, .mask = 1000};
constexpr std::int64_t kSequence = 130;

struct Masked {
  Ids ids = Ids(kSequence);
  Ids targets = Ids(kSequence);
};

Masked masked(const Ids& tokens, std::uint64_t key) {
  Masked made;
  mask_sample(
      table_of_1000(),
      kMarks,
      tokens.data(),
      kSequence,
      Draws(key),
      kIgnoredTarget,
      made.ids.data(),
      made.targets.data());
  return made;
}

TEST(MaskedTokens, SharesAreThoseOfThePaper) {
  constexpr int kSamples = 3000;
  const Ids tokens = counting(kSequence - 2, 500);
  std::map<std::string, double> counts;
  std::vector<int> at_place(kSequence, 0);
  for (int sample = 0; sample < kSamples; ++sample) {
    const Masked made = masked(tokens, evaluation_key(sample));
    ASSERT_EQ(made.ids.front(), 1);
    ASSERT_EQ(made.ids.back(), 2);
    std::int64_t targets = 0;
    for (std::size_t i = 0; i < made.ids.size(); ++i) {
      if (made.targets[i] == kIgnoredTarget) {
        ASSERT_TRUE(i == 0 || i + 1 == made.ids.size() || made.ids[i] == tokens[i - 1]);
        continue;
      }
      ++targets;
      ++at_place[i];
      ASSERT_EQ(made.targets[i], tokens.at(i - 1)) << "the text comes back";
      const std::int64_t id = made.ids[i];
      ASSERT_GT(id, 3) << "no mark stands for a token";
      ++counts[id == 1000 ? "mask" : id == made.targets[i] ? "same" : "other"];
    }
    ASSERT_EQ(targets, 19); // 15 % of 128
  }
  const double all = kSamples * 19.0;
  EXPECT_NEAR(counts["mask"] / all, 0.8, 0.008);
  EXPECT_NEAR(counts["other"] / all, 0.1, 0.006);
  EXPECT_NEAR(counts["same"] / all, 0.1, 0.006);
  EXPECT_EQ(at_place.front() + at_place.back(), 0);
  for (std::size_t i = 1; i + 1 < at_place.size(); ++i) {
    EXPECT_NEAR(at_place[i], kSamples * 19.0 / 128, 120) << i; // six deviations
  }
}

TEST(MaskedTokens, MarksAreMaskedOnlyWhereNothingElseIs) {
  Ids tokens(kSequence - 2, 2);
  std::fill(tokens.begin(), tokens.begin() + 5, 700);
  const Masked made = masked(tokens, 1);
  EXPECT_EQ(std::count(made.targets.begin(), made.targets.end(), 700), 5);
  EXPECT_EQ(std::count(made.targets.begin(), made.targets.end(), 2), 19 - 5);
}

TEST(MaskedTokens, FollowFromTheKey) {
  const Ids tokens = counting(kSequence - 2, 500);
  EXPECT_EQ(masked(tokens, 7).ids, masked(tokens, 7).ids);
  EXPECT_NE(masked(tokens, 7).targets, masked(tokens, 8).targets);
  EXPECT_NE(training_key(1, 0), training_key(0, 1));
  EXPECT_EQ(masked_positions(512), 76);
  EXPECT_EQ(masked_positions(3), 1);
}

TEST(Spans, LengthsAreThoseOfThePaper) {
  const auto lengths = [](std::int64_t sequence) {
    const SpanLengths of = span_lengths(sequence);
    return Ids{of.tokens, of.noise, of.spans, of.inputs, of.targets};
  };
  // The authors' random_spans_helper gives 568 and 114 for 512.
  EXPECT_THAT(lengths(512), ElementsAre(568, 85, 28, 512, 114));
  EXPECT_THAT(lengths(32), ElementsAre(34, 5, 2, 32, 8));
  EXPECT_THAT(lengths(4), ElementsAre(3, 1, 1, 4, 3));
  for (std::int64_t sequence = 4; sequence < 600; ++sequence) {
    EXPECT_EQ(span_lengths(sequence).inputs, sequence);
  }
  EXPECT_THAT(message_of([] { span_lengths(3); }), HasSubstr("write 4 or more"));
}

struct Corrupted {
  Ids inputs;
  Ids targets;
};

constexpr SpanTokens kSpanMarks{.end = 2, .first_sentinel = 1099};

Corrupted corrupted(const SpanLengths& lengths, const Ids& tokens, std::uint64_t key) {
  Corrupted made{
      Ids(static_cast<std::size_t>(lengths.inputs)),
      Ids(static_cast<std::size_t>(lengths.targets))};
  corrupt_sample(
      lengths, kSpanMarks, tokens.data(), Draws(key), made.inputs.data(), made.targets.data());
  return made;
}

/// Puts what stands behind each sentinel of the targets in its place.
Ids restored(const Corrupted& made, Ids& spans) {
  std::map<std::int64_t, Ids> cut;
  std::int64_t sentinel = 0;
  for (const std::int64_t id : made.targets) {
    if (id > 1000) {
      sentinel = id;
    } else if (id != 2) {
      cut[sentinel].push_back(id);
    }
  }
  Ids text;
  std::int64_t next = 1099;
  for (const std::int64_t id : made.inputs) {
    if (id > 1000) {
      EXPECT_EQ(id, next--) << "sentinels count down";
      spans.push_back(static_cast<std::int64_t>(cut[id].size()));
      text.insert(text.end(), cut[id].begin(), cut[id].end());
    } else if (id != 2) {
      text.push_back(id);
    }
  }
  return text;
}

TEST(Spans, PutBackTheyAreTheText) {
  for (const std::int64_t sequence : {4, 5, 17, 128, 512}) {
    const SpanLengths lengths = span_lengths(sequence);
    const Ids tokens = counting(lengths.tokens, 10);
    for (std::uint64_t key = 0; key < 20; ++key) {
      const Corrupted made = corrupted(lengths, tokens, evaluation_key(key));
      Ids spans;
      ASSERT_EQ(restored(made, spans), tokens);
      ASSERT_EQ(made.inputs.back(), 2);
      ASSERT_EQ(made.targets.back(), 2);
      ASSERT_EQ(static_cast<std::int64_t>(spans.size()), lengths.spans);
      ASSERT_EQ(std::accumulate(spans.begin(), spans.end(), std::int64_t{0}), lengths.noise);
      ASSERT_GT(*std::min_element(spans.begin(), spans.end()), 0);
    }
  }
}

TEST(Spans, EveryDivisionIsAsLikely) {
  const SpanLengths lengths = span_lengths(32); // 5 tokens in 2 runs: four divisions
  const Ids tokens = counting(lengths.tokens, 10);
  std::array<int, 5> first{};
  constexpr int kSamples = 4000;
  for (int sample = 0; sample < kSamples; ++sample) {
    Ids spans;
    restored(corrupted(lengths, tokens, evaluation_key(sample)), spans);
    ++first.at(static_cast<std::size_t>(spans.at(0)));
  }
  for (std::size_t length = 1; length < first.size(); ++length) {
    EXPECT_NEAR(first.at(length), kSamples / 4, 165) << length; // six deviations
  }
}

TEST(TokenTable, ReadsTheTokenizersModel) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += "in the beginning was the word " + std::to_string(i * 7919) + "\n";
  }
  const std::string model = data::train_tokenizer(text, 320);
  const TokenTable table = token_table_of_pieces(model, 320, "tokenizer.model");
  EXPECT_EQ(table.find({"<s>"}), 1);
  EXPECT_EQ(table.find({"[CLS]", "<s>"}), 1);
  EXPECT_EQ(table.find({"</s>"}), 2);
  EXPECT_EQ(table.find({"<pad>"}), 3);
  EXPECT_EQ(table.find({"[MASK]", "<mask>"}), std::nullopt);
  EXPECT_EQ(std::count(table.special.begin(), table.special.end(), true), 4);
  EXPECT_TRUE(table.find({"\n"}).has_value()) << "a symbol of the trainer, and text";
  EXPECT_FALSE(table.is_special(*table.find({"\n"})));
  EXPECT_THAT(
      message_of([&] { token_table_of_pieces(model, 321, "tokenizer.model"); }),
      AllOf(HasSubstr("tokenizer.model has 320 pieces"), HasSubstr("321 tokens")));
  EXPECT_THAT(
      message_of([&] {
        token_table_of_pieces(model.substr(0, model.size() / 2), 320, "tokenizer.model");
      }),
      HasSubstr("tokenizer.model"));
  EXPECT_THAT(
      message_of([] { token_table_of_pieces("\x0F no model", 320, "x"); }),
      HasSubstr("x is no SentencePiece model"));
}

TEST(TokenTable, ReadsATokenizerJson) {
  const std::string text = R"({"model": {"type": "WordPiece"}, "added_tokens": [
      {"id": 0, "content": "[PAD]", "special": true}, {"id": 4, "content": "[MASK]", "special": true},
      {"id": 5, "content": "<br>", "special": false}]})";
  const TokenTable table = token_table_of_json(text, 10, "tokenizer.json");
  EXPECT_EQ(table.find({"[MASK]", "<mask>"}), 4);
  EXPECT_TRUE(table.is_special(0) && table.is_special(4));
  EXPECT_FALSE(table.is_special(5) || table.is_special(1));
  EXPECT_THAT(
      message_of([&] { token_table_of_json(text, 5, "tokenizer.json"); }),
      AllOf(HasSubstr("<br> is id 5"), HasSubstr("5 tokens")));
}

TEST(Objective, ACausalModelSaysTheNextToken) {
  const auto causal = make_objective(GptOptions{}, table_of_1000(), 5);
  EXPECT_EQ(causal->facts().window.stride, 5);
  EXPECT_EQ(causal->facts().window.length, 6);
  EXPECT_EQ(causal->facts().vocabulary, 1000);
  EXPECT_THAT(causal->facts().notes, IsEmpty());
  const at::Tensor tokens = torch::arange(12, at::kLong).view({2, 6});
  const Examples made = causal->make(tokens, {0, 0});
  EXPECT_TRUE(torch::equal(made.inputs.at(0), tokens.slice(1, 0, 5)));
  EXPECT_TRUE(torch::equal(made.targets.at(0), tokens.slice(1, 1, 6)));
}

TEST(Objective, AMaskedModelReservesWhatTheTokenizerLacks) {
  const auto facts = make_objective(BertOptions{}, table_of_1000(), 130)->facts();
  EXPECT_EQ(facts.vocabulary, 1001);
  EXPECT_THAT(facts.notes, ElementsAre(HasSubstr("no [MASK] or <mask>: id 1000 is reserved")));
  EXPECT_EQ(facts.options.at("pad_token_id"), 3);
  EXPECT_EQ(facts.window.stride, 128);
  EXPECT_EQ(facts.window.length, 128);
  EXPECT_EQ(facts.targets, 19);
  TokenTable table = table_of_1000();
  table.named["[MASK]"] = 4;
  EXPECT_EQ(make_objective(BertOptions{}, table, 130)->facts().vocabulary, 1000);
  // Data without a tokenizer: four ids, of which a RoBERTa's padding cannot be one.
  table = {};
  table.tokens = 1000;
  EXPECT_EQ(make_objective(BertOptions{}, table, 130)->facts().vocabulary, 1004);
  BertOptions roberta;
  roberta.roberta = true;
  const auto untold = make_objective(roberta, table, 130)->facts();
  EXPECT_EQ(untold.vocabulary, 1003);
  EXPECT_EQ(untold.options.at("pad_token_id"), std::nullopt);
  EXPECT_THAT(
      message_of([&] { make_objective(BertOptions{}, table, 2); }), HasSubstr("write 3 or more"));
  EXPECT_THAT(message_of([&] { make_objective(NcfOptions{}, table, 8); }), HasSubstr("ncf"));
}

TokenTable table_of_interactions() {
  TokenTable table;
  table.tokens = 60;
  table.interactions = {60, 4};
  return table;
}

TEST(Objective, AnInteractionStandsBesideOtherItems) {
  const auto pairs = make_objective(NcfOptions{}, table_of_interactions(), 5);
  EXPECT_EQ(pairs->facts().window.stride, 2);
  EXPECT_EQ(pairs->facts().window.length, 2);
  EXPECT_EQ(pairs->facts().targets, 5);
  EXPECT_EQ(pairs->facts().options.at("users"), 60);
  EXPECT_EQ(pairs->facts().options.at("items"), 4);
  constexpr std::int64_t kRows = 200;
  const at::Tensor users = torch::arange(kRows).remainder(60);
  const at::Tensor items = torch::arange(kRows).remainder(4);
  std::vector<std::uint64_t> keys(kRows);
  std::iota(keys.begin(), keys.end(), 1);
  const Examples made = pairs->make(torch::stack({users, items}, 1), keys);
  const at::Tensor& shown = made.inputs.at(1);
  EXPECT_TRUE(torch::equal(made.inputs.at(0), users.unsqueeze(1).expand({kRows, 5})));
  EXPECT_TRUE(torch::equal(shown.select(1, 0), items));
  const at::Tensor others = shown.slice(1, 1);
  EXPECT_FALSE(others.eq(items.unsqueeze(1)).any().item<bool>());
  EXPECT_GE(others.min().item<std::int64_t>(), 0);
  EXPECT_LT(others.max().item<std::int64_t>(), 4);
  // 800 are drawn, of each item as many but for chance.
  for (std::int64_t item = 0; item < 4; ++item) {
    EXPECT_NEAR(others.eq(item).sum().item<double>(), 200, 60) << item;
  }
  const at::Tensor wanted = torch::tensor({1.0F, 0.0F, 0.0F, 0.0F, 0.0F}).expand({kRows, 5});
  EXPECT_TRUE(torch::equal(made.targets.at(0), wanted));
  // What is drawn follows from the keys alone.
  EXPECT_TRUE(torch::equal(pairs->make(torch::stack({users, items}, 1), keys).inputs[1], shown));
  std::iota(keys.begin(), keys.end(), 1000);
  EXPECT_FALSE(torch::equal(pairs->make(torch::stack({users, items}, 1), keys).inputs[1], shown));
}

TEST(Objective, DataAndFamilyAreOfOneKind) {
  const TokenTable pairs = table_of_interactions();
  EXPECT_THAT(
      message_of([&] { make_objective(GptOptions{}, pairs, 8); }), HasSubstr("of users and items"));
  EXPECT_THAT(
      message_of([&] { make_objective(NcfOptions{}, table_of_1000(), 8); }),
      HasSubstr("tessera data interactions"));
  EXPECT_THAT(
      message_of([&] { make_objective(NcfOptions{}, pairs, 1); }),
      HasSubstr("data.sequence of 2 or more"));
}

TEST(Objective, AT5ReadsSentinelsAndBeginsWithPadding) {
  T5Options options;
  options.decoder_start_token_id = 3;
  const auto spans = make_objective(options, table_of_1000(), 32);
  EXPECT_EQ(spans->facts().vocabulary, 1100);
  EXPECT_EQ(spans->facts().options.at("decoder_start_token_id"), 3);
  EXPECT_EQ(spans->facts().decoder_positions, 8);
  EXPECT_THAT(spans->facts().notes, ElementsAre(HasSubstr("ids 1000 to 1099 are reserved")));
  const at::Tensor tokens = torch::arange(68, at::kLong).view({2, 34}) + 10;
  const Examples made = spans->make(tokens, {11, 12});
  ASSERT_EQ(made.inputs.size(), 2U);
  const at::Tensor& targets = made.targets.at(0);
  EXPECT_EQ(made.inputs.at(0).sizes(), at::IntArrayRef({2, 32}));
  EXPECT_EQ(targets.sizes(), at::IntArrayRef({2, 8}));
  EXPECT_EQ(targets[0][0].item<std::int64_t>(), 1099);
  EXPECT_TRUE(torch::equal(made.inputs.at(1).slice(1, 1), targets.slice(1, 0, -1)));
  EXPECT_TRUE(made.inputs.at(1).select(1, 0).eq(3).all().item<bool>());

  TokenTable table = table_of_1000();
  table.named["<extra_id_0>"] = 999;
  EXPECT_THAT(
      message_of([&] { make_objective(options, table, 32); }),
      AllOf(HasSubstr("<extra_id_1> is missing"), HasSubstr("expected id 998")));
  table.named["<extra_id_1>"] = 998;
  EXPECT_EQ(make_objective(options, table, 32)->facts().vocabulary, 1000);
  EXPECT_THAT(
      message_of([&] { make_objective(options, table_of_1000(), 2048); }),
      HasSubstr("there are 100 sentinels"));
}

TEST(Objective, SamplesAreTheSameUnderAnyLayout) {
  const std::string path = testing::TempDir() + "objectives.tokens";
  std::vector<std::int32_t> ids(1500);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(5 + i * 37 % 900);
  }
  data::write_token_file(path, ids, 1000);
  std::vector<data::TokenDataset> datasets;
  datasets.emplace_back(path);
  const data::TokenDataset& dataset = datasets.front();
  for (const Options& options : {Options(BertOptions{}), Options(T5Options{})}) {
    const auto objective = make_objective(options, table_of_1000(), 32);
    data::MixtureOptions alone;
    alone.weights = {1.0};
    alone.samples = {data::count_samples(dataset.size(), objective->facts().window, path)};
    alone.batch = 16;
    data::MixtureSampler whole(alone);
    data::MixtureOptions half = alone;
    half.batch = 8;
    half.all = 16;
    data::MixtureSampler first(half);
    half.before = 8;
    data::MixtureSampler second(half);
    at::Tensor before;
    for (int step = 0; step < 6; ++step) { // two epochs
      const std::string state = whole.state();
      const Examples all = training_examples(*objective, datasets, whole, 9);
      const Examples left = training_examples(*objective, datasets, first, 9);
      const Examples right = training_examples(*objective, datasets, second, 9);
      for (std::size_t i = 0; i < all.inputs.size(); ++i) {
        EXPECT_TRUE(torch::equal(all.inputs[i], torch::cat({left.inputs[i], right.inputs[i]})));
      }
      EXPECT_TRUE(torch::equal(all.targets[0], torch::cat({left.targets[0], right.targets[0]})));
      data::MixtureSampler resumed(alone);
      resumed.set_state(state);
      const Examples again = training_examples(*objective, datasets, resumed, 9);
      EXPECT_TRUE(torch::equal(again.inputs[0], all.inputs[0]));
      data::MixtureSampler other(alone);
      other.set_state(state);
      EXPECT_FALSE(torch::equal(
          training_examples(*objective, datasets, other, 10).inputs[0], all.inputs[0]));
    }
    // The same sample is drawn anew in training, and never in an evaluation.
    data::MixtureOptions in_order = alone;
    in_order.shuffle = false;
    in_order.batch = alone.samples.front();
    data::MixtureSampler epochs(in_order);
    EXPECT_FALSE(torch::equal(
        training_examples(*objective, datasets, epochs, 9).targets[0],
        training_examples(*objective, datasets, epochs, 9).targets[0]));
    EXPECT_TRUE(torch::equal(
        evaluation_examples(*objective, dataset, {3, 5}).targets[0][1],
        evaluation_examples(*objective, dataset, {5}).targets[0][0]));
  }
  std::filesystem::remove(path);
}

} // namespace
} // namespace tessera::models
