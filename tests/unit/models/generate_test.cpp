#include "models/generate.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "models/gpt.h"
#include "models/load.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Says "id + 1" with certainty, and remembers how much it was shown.
class Counter {
 public:
  at::Tensor operator()(const at::Tensor& ids) {
    longest = std::max(longest, ids.size(1));
    return torch::one_hot((ids + 1).remainder(50), 50).to(at::kFloat) * 100;
  }
  std::int64_t longest = 0;
};

GenerateOptions some_options() {
  GenerateOptions options;
  options.tokens = 6;
  options.context = 4;
  return options;
}

TEST(Generate, ContinuesWithinTheContext) {
  Counter counter;
  const auto tokens = generate(std::ref(counter), {7, 8, 9}, some_options());
  EXPECT_THAT(tokens, testing::ElementsAre(10, 11, 12, 13, 14, 15));
  EXPECT_EQ(counter.longest, 4);
}

TEST(Generate, StopsAtTheStopToken) {
  Counter counter;
  auto options = some_options();
  options.stop = 12;
  EXPECT_THAT(generate(std::ref(counter), {9}, options), testing::ElementsAre(10, 11));
}

// Four ids of probabilities 0.5, 0.3, 0.15, 0.05 whatever came before.
at::Tensor fixed_odds(const at::Tensor& ids) {
  return torch::tensor({0.5, 0.3, 0.15, 0.05}).log().expand({1, ids.size(1), 4});
}

std::vector<double> shares(GenerateOptions options) {
  options.tokens = 4000;
  options.context = 1;
  std::vector<double> counts(4);
  for (const auto id : generate(fixed_odds, {0}, options)) {
    counts.at(id) += 1.0 / 4000;
  }
  return counts;
}

TEST(Generate, DrawsByProbabilityTemperatureAndTopK) {
  using testing::DoubleNear;
  using testing::ElementsAre;
  GenerateOptions options;
  options.temperature = 1;
  options.top_k = 0;
  EXPECT_THAT(
      shares(options),
      ElementsAre(
          DoubleNear(0.5, 0.03),
          DoubleNear(0.3, 0.03),
          DoubleNear(0.15, 0.03),
          DoubleNear(0.05, 0.03)));
  options.top_k = 2;
  EXPECT_THAT(shares(options), ElementsAre(DoubleNear(0.625, 0.03), DoubleNear(0.375, 0.03), 0, 0));
  options.temperature = 0.5; // odds squared: 25 to 9
  EXPECT_THAT(shares(options), ElementsAre(DoubleNear(0.735, 0.03), DoubleNear(0.265, 0.03), 0, 0));
  options.temperature = 0;
  EXPECT_THAT(shares(options), ElementsAre(DoubleNear(1, 1e-9), 0, 0, 0));
}

TEST(Generate, TheSameSeedGivesTheSameTokens) {
  auto options = some_options();
  options.tokens = 50;
  options.temperature = 1;
  const auto first = generate(fixed_odds, {0}, options);
  EXPECT_EQ(first, generate(fixed_odds, {0}, options));
  options.seed = 1;
  EXPECT_NE(first, generate(fixed_odds, {0}, options));
}

TEST(Generate, WrongOptionsAreNamed) {
  const auto message = [](auto change) -> std::string {
    auto options = some_options();
    change(options);
    try {
      generate(fixed_odds, {0}, options);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(
      message([](auto& o) { o.temperature = -1; }),
      AllOf(HasSubstr("temperature is -1"), HasSubstr("0 or more")));
  EXPECT_THAT(message([](auto& o) { o.top_k = -2; }), HasSubstr("top_k"));
  EXPECT_THAT(message([](auto& o) { o.context = 0; }), HasSubstr("context"));
  EXPECT_THROW(generate(fixed_odds, {}, some_options()), ConfigError);
}

GptOptions small_gpt() {
  GptOptions options;
  options.vocab_size = 17;
  options.n_positions = 8;
  options.n_embd = 12;
  options.n_layer = 1;
  options.n_head = 3;
  return options;
}

std::map<std::string, at::Tensor> tensors_of(torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    tensors[item.key()] = item.value().detach().clone();
  }
  return tensors;
}

TEST(Load, TakesOwnAndPublishedNames) {
  torch::manual_seed(1);
  Gpt source(small_gpt());
  source->eval();
  const auto own = tensors_of(*source);
  // As published: no root, the output layer left out, masks along.
  std::map<std::string, at::Tensor> published{{"h.0.attn.bias", torch::ones({1, 1, 8, 8})}};
  for (const auto& [name, tensor] : own) {
    if (name != "lm_head.weight") {
      published[name.substr(name.find('.') + 1)] = tensor;
    }
  }
  const auto ids = torch::tensor({{1, 2, 3}}, at::kLong);
  for (const auto& tensors : {own, published}) {
    Gpt model(small_gpt());
    model->eval();
    EXPECT_FALSE(torch::equal(model(ids), source(ids)));
    load_parameters(*model, tensors, "file");
    EXPECT_TRUE(torch::equal(model(ids), source(ids)));
  }
}

TEST(Load, SaysWhatDoesNotFitAndChangesNothing) {
  torch::manual_seed(2);
  Gpt model(small_gpt());
  const auto before = tensors_of(*model);
  const auto message = [&](auto change) -> std::string {
    auto tensors = before;
    for (auto& entry : tensors) {
      entry.second = entry.second + 1;
    }
    change(tensors);
    try {
      load_parameters(*model, tensors, "a.safetensors");
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(
      message([](auto& t) {
        t.erase("transformer.h.0.ln_1.bias");
        t["transformer.h.1.ln_1.bias"] = torch::zeros({12});
      }),
      AllOf(
          HasSubstr("a.safetensors"),
          HasSubstr("lacks transformer.h.0.ln_1.bias;"),
          HasSubstr("has no transformer.h.1.ln_1.bias")));
  EXPECT_THAT(
      message([](auto& t) {
        t["transformer.wpe.weight"] = torch::zeros({9, 12});
      }),
      AllOf(HasSubstr("[9, 12]"), HasSubstr("[8, 12]")));
  for (const auto& [name, tensor] : tensors_of(*model)) {
    EXPECT_TRUE(torch::equal(tensor, before.at(name))) << name;
  }
}

TEST(Load, TwoNamesOfOneParameterMustAgree) {
  torch::manual_seed(3);
  Gpt model(small_gpt());
  auto tensors = tensors_of(*model);
  const auto before = tensors_of(*model);
  const auto message = [&]() -> std::string {
    try {
      load_parameters(*model, tensors, "a.safetensors");
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  };
  tensors["lm_head.weight"][3][2] += 1e-3;
  EXPECT_THAT(
      message(),
      AllOf(
          HasSubstr("a.safetensors: "),
          HasSubstr("lm_head.weight"),
          HasSubstr("transformer.wte.weight"),
          HasSubstr("tie_word_embeddings")));
  tensors = before;
  tensors["h.0.ln_1.bias"] = torch::ones({12});
  EXPECT_THAT(message(), AllOf(HasSubstr("h.0.ln_1.bias"), HasSubstr("differ")));
  // The same contents twice are no contradiction.
  tensors["h.0.ln_1.bias"] = before.at("transformer.h.0.ln_1.bias");
  EXPECT_EQ(message(), "no error");
}

TEST(Load, AnOutputLayerOfItsOwnIsUsed) {
  torch::manual_seed(4);
  GptOptions options = small_gpt();
  options.tie_word_embeddings = false;
  Gpt source(options);
  source->eval();
  const auto tensors = tensors_of(*source);
  EXPECT_FALSE(torch::equal(tensors.at("lm_head.weight"), tensors.at("transformer.wte.weight")));
  Gpt model(options);
  model->eval();
  load_parameters(*model, tensors, "file");
  const auto ids = torch::tensor({{1, 2, 3}}, at::kLong);
  EXPECT_TRUE(torch::equal(model(ids), source(ids)));
  auto lacking = tensors;
  lacking.erase("lm_head.weight");
  EXPECT_THROW(load_parameters(*model, lacking, "file"), CheckpointError);
  // The last part of a name alone is no name.
  lacking["weight"] = tensors.at("lm_head.weight");
  EXPECT_THROW(load_parameters(*model, lacking, "file"), CheckpointError);
}

TEST(Load, WholeNumbersAreNoWeights) {
  Gpt model(small_gpt());
  auto tensors = tensors_of(*model);
  tensors["transformer.ln_f.bias"] = torch::zeros({12}, at::kChar);
  try {
    load_parameters(*model, tensors, "file");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(
        error.what(), AllOf(HasSubstr("transformer.ln_f.bias"), HasSubstr("floating-point")));
  }
}

} // namespace
} // namespace tessera::models
