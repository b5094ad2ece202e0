#include "models/bert.h"

#include <cmath>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/load.h"
#include "models/ncf.h"
#include "models/registry.h"

namespace tessera::models {
namespace {

BertOptions small_bert(bool roberta = false) {
  BertOptions options;
  options.vocab_size = 23;
  options.hidden_size = 12;
  options.num_hidden_layers = 1;
  options.num_attention_heads = 3;
  options.intermediate_size = 20;
  options.max_position_embeddings = 10;
  options.hidden_dropout_prob = 0;
  options.attention_probs_dropout_prob = 0;
  options.roberta = roberta;
  options.pad_token_id = roberta ? 1 : 0;
  options.type_vocab_size = roberta ? 1 : 2;
  return options;
}

at::Tensor ids_of(std::initializer_list<std::int64_t> values) {
  return torch::tensor(std::vector<std::int64_t>(values), at::kLong).unsqueeze(0);
}

std::vector<std::string> names(const torch::nn::Module& module) {
  std::vector<std::string> found;
  for (const auto& item : module.named_parameters()) {
    found.push_back(tessera::str(item.key(), " ", item.value().sizes()));
  }
  return found;
}

std::vector<std::string> body_names(const std::string& root, int types) {
  std::vector<std::string> expected{
      root + "embeddings.word_embeddings.weight [23, 12]",
      root + "embeddings.position_embeddings.weight [10, 12]",
      root + "embeddings.token_type_embeddings.weight [" + std::to_string(types) + ", 12]",
      root + "embeddings.LayerNorm.weight [12]",
      root + "embeddings.LayerNorm.bias [12]"};
  const std::string layer = root + "encoder.layer.0.";
  for (const char* rest :
       {"attention.self.query.weight [12, 12]",
        "attention.self.query.bias [12]",
        "attention.self.key.weight [12, 12]",
        "attention.self.key.bias [12]",
        "attention.self.value.weight [12, 12]",
        "attention.self.value.bias [12]",
        "attention.output.dense.weight [12, 12]",
        "attention.output.dense.bias [12]",
        "attention.output.LayerNorm.weight [12]",
        "attention.output.LayerNorm.bias [12]",
        "intermediate.dense.weight [20, 12]",
        "intermediate.dense.bias [20]",
        "output.dense.weight [12, 20]",
        "output.dense.bias [12]",
        "output.LayerNorm.weight [12]",
        "output.LayerNorm.bias [12]"}) {
    expected.push_back(layer + rest);
  }
  return expected;
}

TEST(Bert, ParameterNamesAndShapesAreThoseOfTheCheckpoints) {
  auto expected = body_names("bert.", 2);
  for (const char* rest :
       {"bert.pooler.dense.weight [12, 12]",
        "bert.pooler.dense.bias [12]",
        "cls.predictions.bias [23]",
        "cls.predictions.transform.dense.weight [12, 12]",
        "cls.predictions.transform.dense.bias [12]",
        "cls.predictions.transform.LayerNorm.weight [12]",
        "cls.predictions.transform.LayerNorm.bias [12]",
        "cls.predictions.decoder.weight [23, 12]",
        "cls.seq_relationship.weight [2, 12]",
        "cls.seq_relationship.bias [2]"}) {
    expected.emplace_back(rest);
  }
  EXPECT_THAT(names(*Bert(small_bert())), testing::UnorderedElementsAreArray(expected));
}

TEST(Bert, WithoutTheHeadForPairsItHasNoPooler) {
  BertOptions options = small_bert();
  options.next_sentence = false;
  auto expected = names(*Bert(small_bert()));
  std::erase_if(expected, [](const std::string& name) {
    return name.find("pooler") != std::string::npos || name.find("seq_rel") != std::string::npos;
  });
  EXPECT_EQ(names(*Bert(options)), expected);
  const AnyModel any = make_model(preset_of_options("a model", options));
  const at::Tensor ids = ids_of({5, 6, 7});
  EXPECT_EQ(any.forward({ids}).size(), 1U);
  EXPECT_TRUE(any.training_loss({ids}, {ids}).isfinite().item<bool>());
  for (const bool training : {false, true}) {
    const Tensors targets{ids, torch::ones({1}, at::kLong)};
    try {
      training ? any.training_loss({ids}, targets) : any.loss(any.forward({ids}), targets);
      FAIL() << "no ConfigError";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("next_sentence is false"));
    }
  }
}

TEST(Bert, AStateHasASharedParameterOnce) {
  Bert model(small_bert());
  const std::vector<WantedParameter> wanted = wanted_parameters(*model);
  const std::string first = "bert.embeddings.word_embeddings.weight";
  const std::string further = "cls.predictions.decoder.weight";
  std::map<std::string, at::Tensor> state;
  for (const auto& item : model->named_parameters()) {
    state[item.key()] = item.value().detach();
  }
  const auto once = in_form_of(wanted, state, true, "a state");
  EXPECT_EQ(once.size() + 1, state.size());
  EXPECT_TRUE(once.contains(first) && !once.contains(further));
  EXPECT_EQ(in_form_of(wanted, once, true, "a state").size(), once.size());
  state.erase(first); // as a file that has the other name
  EXPECT_TRUE(in_form_of(wanted, state, true, "a state").at(first).is_same(state.at(further)));
  EXPECT_TRUE(in_form_of(wanted, state, false, "a state").contains(first));
  state.erase(further);
  EXPECT_THROW(in_form_of(wanted, state, true, "a state"), CheckpointError);
}

TEST(Roberta, ParameterNamesAndShapesAreThoseOfTheCheckpoints) {
  auto expected = body_names("roberta.", 1);
  for (const char* rest :
       {"lm_head.bias [23]",
        "lm_head.dense.weight [12, 12]",
        "lm_head.dense.bias [12]",
        "lm_head.layer_norm.weight [12]",
        "lm_head.layer_norm.bias [12]",
        "lm_head.decoder.weight [23, 12]"}) {
    expected.emplace_back(rest);
  }
  EXPECT_THAT(names(*Roberta(small_bert(true))), testing::UnorderedElementsAreArray(expected));
}

TEST(Bert, PaddingDoesNotCount) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  Bert model(small_bert());
  for (auto& parameter : model->parameters()) {
    parameter.normal_(0, 0.3);
  }
  const auto [logits, next] = model(ids_of({5, 6, 7}));
  const auto [padded, padded_next] = model(ids_of({5, 6, 7, 9, 9}), ids_of({1, 1, 1, 0, 0}));
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{1, 3, 23}));
  EXPECT_EQ(next.sizes(), (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(torch::allclose(logits, padded.slice(1, 0, 3), 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(next, padded_next, 1e-4, 1e-5));
  const auto unmasked = std::get<0>(model(ids_of({5, 6, 7, 9, 9})));
  EXPECT_FALSE(torch::allclose(logits, unmasked.slice(1, 0, 3), 1e-3));
}

TEST(Bert, EveryPositionSeesEveryOtherAndTypesMatter) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  Bert model(small_bert());
  for (auto& parameter : model->parameters()) {
    parameter.normal_(0, 0.3);
  }
  const auto a = std::get<0>(model(ids_of({5, 6, 7, 8})));
  const auto b = std::get<0>(model(ids_of({5, 6, 7, 11})));
  EXPECT_FALSE(torch::allclose(a.slice(1, 0, 1), b.slice(1, 0, 1)));
  const at::Tensor no_mask;
  const auto zeros = std::get<0>(model(ids_of({5, 6, 7, 8}), no_mask, ids_of({0, 0, 0, 0})));
  const auto pair = std::get<0>(model(ids_of({5, 6, 7, 8}), no_mask, ids_of({0, 0, 1, 1})));
  EXPECT_TRUE(torch::allclose(a, zeros));
  EXPECT_FALSE(torch::allclose(a, pair));
}

// Positions of RoBERTa start after the padding id and skip padding: a padded
// sequence gives the same as the shorter one.
TEST(Roberta, PositionsSkipPadding) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  Roberta model(small_bert(true));
  for (auto& parameter : model->parameters()) {
    parameter.normal_(0, 0.3);
  }
  const auto logits = model(ids_of({5, 6, 7}));
  const auto padded = model(ids_of({1, 1, 5, 6, 7}), ids_of({0, 0, 1, 1, 1}));
  EXPECT_TRUE(torch::allclose(logits, padded.slice(1, 2), 1e-4, 1e-5));
}

TEST(Roberta, TooLongASequenceNamesTheLimit) {
  Roberta model(small_bert(true));
  try {
    model(torch::full({2, 9}, 4, at::kLong));
    FAIL();
  } catch (const ShapeError& error) {
    // 10 embeddings, of which 0 and 1 are no positions.
    EXPECT_THAT(error.what(), testing::HasSubstr("roberta"));
    EXPECT_THAT(error.what(), testing::HasSubstr("at most 8"));
  }
}

TEST(Bert, Bfloat16StaysNearF32AndEveryParameterLearns) {
  torch::manual_seed(4);
  Bert model(small_bert());
  const auto source = ids_of({5, 6, 7, 8});
  const auto targets = ids_of({kIgnoredTarget, 9, kIgnoredTarget, 3});
  const auto loss_of = [&] {
    const auto [logits, next] = model(source);
    return cross_entropy(logits, targets) + cross_entropy(next, torch::ones({1}, at::kLong));
  };
  const auto exact = loss_of();
  EXPECT_NEAR(exact.item<double>(), std::log(23.0) + std::log(2.0), 0.3);
  model->to(at::kBFloat16);
  const auto loss = loss_of();
  EXPECT_NEAR(loss.item<float>(), exact.item<float>(), 0.05);
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

TEST(Ncf, LearnsWhoLikesWhat) {
  torch::manual_seed(5);
  NcfOptions options;
  options.users = 8;
  options.items = 8;
  options.factors = 4;
  options.first_layer = 16;
  options.layers = 2;
  Ncf model(options);
  const auto users = torch::arange(64, at::kLong).div(8, "floor");
  const auto items = torch::arange(64, at::kLong).remainder(8);
  // Even users like even items.
  const auto liked = users.remainder(2).eq(items.remainder(2)).to(at::kFloat);
  torch::optim::Adam optimizer(model->parameters(), 0.02);
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    at::binary_cross_entropy_with_logits(model(users, items), liked).backward();
    optimizer.step();
  }
  const auto right = model(users, items).gt(0).to(at::kFloat).eq(liked);
  EXPECT_EQ(right.sum().item<std::int64_t>(), 64);
}

} // namespace
} // namespace tessera::models
