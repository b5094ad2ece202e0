// Documents packed into one sequence: under their mask each has the logits and gradients that it
// has alone, and attention beside one written as a loop.
#include "models/objectives/documents.h"

#include <cmath>
#include <map>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/first_keys.h"
#include "tessera/recompute/attentions.h"

#include "models/gpt.h"
#include "models/registry.h"

namespace tessera::models {
namespace {

/// Lengths of the documents of each row: the rows differ, one document is a single token.
const std::vector<std::vector<std::int64_t>> kLengths{{5, 1, 4, 2}, {3, 9}};
constexpr std::int64_t kSequence = 12;
constexpr std::int64_t kVocabulary = 31;

struct Case {
  const char* name;
  const char* preset;
  const char* options;
  bool selective = false; // attentions are computed again in the backward
};

void PrintTo(const Case& of, std::ostream* out) {
  *out << of.name;
}

torch::Tensor begins_of_rows() {
  std::vector<torch::Tensor> rows;
  for (const auto& lengths : kLengths) {
    std::vector<torch::Tensor> parts;
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      parts.push_back(torch::full({length}, begin, torch::kLong));
      begin += length;
    }
    rows.push_back(torch::cat(parts));
  }
  return torch::stack(rows);
}

using Gradients = std::map<std::string, torch::Tensor>;

Gradients gradients_of(torch::nn::Module& module) {
  Gradients gradients;
  for (auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) {
      gradients[item.key()] = item.value().grad().clone();
      item.value().mutable_grad().reset();
    }
  }
  return gradients;
}

double furthest(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class PackedDocuments : public testing::TestWithParam<Case> {
 protected:
  PackedDocuments() {
    torch::manual_seed(11);
    model_ = make_model(GetParam().preset, GetParam().options);
    model_.module->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model_.module->parameters()) {
      parameter.add_(torch::randn_like(parameter) * 0.3); // attention that is far from even
    }
    ids_ = torch::randint(kVocabulary, {2, kSequence}, torch::kLong);
    weights_ = torch::randn({2, kSequence, kVocabulary}, torch::kDouble);
    recompute::set_attentions(GetParam().selective);
  }
  ~PackedDocuments() override {
    recompute::set_attentions(false);
  }

  /// Logits of every document alone, packed again; `inputs_of` makes a document's inputs of its
  /// ids and of where it begins.
  template <typename InputsOf>
  torch::Tensor alone(const InputsOf& inputs_of) {
    std::vector<torch::Tensor> rows;
    for (std::size_t row = 0; row < kLengths.size(); ++row) {
      std::vector<torch::Tensor> parts;
      std::int64_t begin = 0;
      for (const std::int64_t length : kLengths[row]) {
        const auto ids = ids_.narrow(0, static_cast<std::int64_t>(row), 1).narrow(1, begin, length);
        parts.push_back(model_.forward(inputs_of(ids, begin)).at(0));
        begin += length;
      }
      rows.push_back(torch::cat(parts, 1));
    }
    return torch::cat(rows);
  }

  void expect_equal(const torch::Tensor& packed, const torch::Tensor& expected) {
    EXPECT_LT(furthest(packed, expected), 1e-9);
    (expected * weights_).sum().backward();
    const Gradients wanted = gradients_of(*model_.module);
    (packed * weights_).sum().backward();
    const Gradients found = gradients_of(*model_.module);
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, gradient] : wanted) {
      ASSERT_EQ(found.count(name), 1u) << name;
      EXPECT_LT(
          furthest(found.at(name), gradient), 1e-8 * (1 + gradient.abs().max().item<double>()))
          << name;
    }
  }

  AnyModel model_;
  torch::Tensor ids_;
  torch::Tensor weights_;
};

TEST_P(PackedDocuments, AreWhatEachIsAlone) {
  const auto begins = begins_of_rows();
  const auto positions = torch::arange(kSequence) - begins;
  const auto expected = alone([](const torch::Tensor& ids, std::int64_t) { return Tensors{ids}; });
  expect_equal(model_.forward({ids_, begins, positions}).at(0), expected);
  // Without the mask they are not.
  EXPECT_GT(furthest(model_.forward({ids_}).at(0), expected), 1e-3);
}

TEST_P(PackedDocuments, StandWhereTheyAreUnlessPositionsBeginAgain) {
  const bool embedded = GetParam().preset == std::string("gpt-tiny") ||
                        GetParam().preset == std::string("gpt-neo-tiny");
  const auto expected = alone([&](const torch::Tensor& ids, std::int64_t begin) -> Tensors {
    if (!embedded) {
      return {ids}; // attention knows distances alone
    }
    return {ids, torch::zeros_like(ids), torch::arange(begin, begin + ids.size(1)).unsqueeze(0)};
  });
  expect_equal(model_.forward({ids_, begins_of_rows()}).at(0), expected);
}

TEST_P(PackedDocuments, OneDocumentIsTheOrdinarySequence) {
  const auto none = torch::zeros_like(ids_);
  EXPECT_LT(furthest(model_.forward({ids_, none}).at(0), model_.forward({ids_}).at(0)), 1e-12);
}

constexpr const char* kGpt =
    R"({"vocab_size": 31, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 12, "dropout": 0.0})";
#define TESSERA_SMALL                                                                         \
  R"("vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, )" \
  R"("num_attention_heads": 2, "max_position_embeddings": 12, "dropout": 0.0)"
constexpr const char* kSmall = "{" TESSERA_SMALL "}";
constexpr const char* kBlocks = "{" TESSERA_SMALL R"(, "flash_attention": true})";
constexpr const char* kWindow = "{" TESSERA_SMALL R"(, "window_size": 3})";

INSTANTIATE_TEST_SUITE_P(
    Models,
    PackedDocuments,
    testing::Values(
        Case{"gpt", "gpt-tiny", kGpt},
        Case{"gpt_selective", "gpt-tiny", kGpt, true},
        Case{"llama", "llama-tiny", kSmall},
        Case{"llama_selective", "llama-tiny", kSmall, true},
        Case{"llama_blockwise", "llama-tiny", kBlocks},
        Case{"gptj", "gptj-tiny", kSmall},
        Case{"gpt_neo", "gpt-neo-tiny", kWindow},
        Case{"gpt_neo_blockwise", "gpt-neo-tiny", kBlocks},
        Case{"gpt_neox", "gpt-neox-tiny", kSmall}),
    [](const auto& info) { return std::string(info.param.name); });

/// One weight at a time, as the definition says it.
torch::Tensor attention_as_a_loop(
    GptAttention& attention,
    const torch::Tensor& x,
    const torch::Tensor& begins,
    std::int64_t heads) {
  const auto p = attention->named_parameters();
  const auto qkv = x.matmul(p["c_attn.weight"]) + p["c_attn.bias"];
  const std::int64_t width = x.size(2);
  const std::int64_t d = width / heads;
  auto joined = torch::zeros_like(x);
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto part = [&](std::int64_t kind, std::int64_t s) {
        return qkv[b][s].narrow(0, kind * width + h * d, d);
      };
      for (std::int64_t s = 0; s < x.size(1); ++s) {
        auto scores = torch::full({x.size(1)}, -INFINITY, x.options());
        for (std::int64_t t = begins[b][s].item<std::int64_t>(); t <= s; ++t) {
          scores[t] = part(0, s).dot(part(1, t)) / std::sqrt(static_cast<double>(d));
        }
        const auto shares = torch::softmax(scores, 0);
        for (std::int64_t t = 0; t <= s; ++t) {
          joined[b][s].narrow(0, h * d, d).add_(part(2, t) * shares[t]);
        }
      }
    }
  }
  return joined.matmul(p["c_proj.weight"]) + p["c_proj.bias"];
}

TEST(PackedDocumentsOfGpt, AttentionEqualsALoop) {
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  GptOptions options;
  options.n_embd = 12;
  options.n_head = 3;
  options.dropout = 0;
  GptAttention attention(options);
  attention->to(torch::kDouble);
  for (auto& parameter : attention->parameters()) {
    parameter.normal_(0, 0.5);
  }
  const auto x = torch::randn({2, kSequence, 12}, torch::kDouble);
  const auto begins = begins_of_rows();
  const auto expected = attention_as_a_loop(attention, x, begins, 3);
  EXPECT_LT(furthest(attention(x, nn::first_keys(begins)), expected), 1e-10);
  EXPECT_GT(furthest(attention(x), expected), 1e-3);
}

TEST(PackedDocumentsOfGpt, OtherFormsAreRefused) {
  EXPECT_THROW(nn::first_keys(torch::zeros({3}, torch::kLong)), ShapeError);
  EXPECT_THROW(nn::first_keys(torch::zeros({3, 4})), ShapeError);
  const AnyModel llama = make_model("llama-tiny");
  const auto ids = torch::zeros({1, 4}, torch::kLong);
  EXPECT_THROW(llama.forward({ids, torch::Tensor(), ids}), ShapeError);
  EXPECT_THROW(llama.forward({ids, ids, ids, ids}), ConfigError);
}

TEST(PackedDocumentsOfGpt, AreForModelsThatContinueAText) {
  for (const char* name : {"bert-tiny", "t5-tiny"}) {
    const Preset preset = find_preset(name);
    EXPECT_THROW(check_takes_documents(preset.options, preset.family, "the key"), ConfigError);
  }
  for (const char* name :
       {"gpt-tiny", "llama-tiny", "gptj-tiny", "gpt-neo-tiny", "gpt-neox-tiny"}) {
    const Preset preset = find_preset(name);
    EXPECT_NO_THROW(check_takes_documents(preset.options, preset.family, "the key"));
  }
}

} // namespace
} // namespace tessera::models
