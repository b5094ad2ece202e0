// Every field of the config.json files that transformers wrote: used, refused, or without effect.
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"

#include "models/published_config.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

struct File {
  std::string name;
  OrderedJson fields;
};

std::vector<File> files() {
  std::vector<File> found;
  for (const auto& entry : fs::directory_iterator(TESSERA_FIXTURES)) {
    const fs::path path = entry.path() / "config.json";
    if (fs::exists(path)) {
      found.push_back(
          {entry.path().filename().string(), OrderedJson::parse(read_file(path.string()))});
    }
  }
  std::sort(
      found.begin(), found.end(), [](const File& a, const File& b) { return a.name < b.name; });
  return found;
}

std::string options_text(const Options& options) {
  return std::visit([](const auto& of) { return to_json(of); }, options);
}

std::string options_text(const OrderedJson& fields) {
  return options_text(options_from_published(fields.dump(), "config.json"));
}

/// No logit of an evaluation depends on them: how the file came to be, tokens, probabilities of
/// dropout, heads for other tasks, and what the class does not look at.
bool is_without_effect(const std::string& family, const std::string& key) {
  static const std::set<std::string> of_all{
      "transformers_version",
      "dtype",
      "torch_dtype",
      "use_cache",
      "bos_token_id",
      "eos_token_id",
      "classifier_dropout",
      "summary_activation",
      "summary_first_dropout",
      "summary_proj_to_labels",
      "summary_type",
      "summary_use_proj",
      "resid_pdrop",
      "embd_pdrop",
      "attn_pdrop",
      "attention_dropout",
      "hidden_dropout",
      "resid_dropout",
      "embed_dropout",
      // The order of a product and a conversion, which are the same numbers in f32.
      "reorder_and_upcast_attn"};
  const bool encoder = family == "bert" || family == "roberta";
  return of_all.contains(key) || (key == "architectures" && family != "bert") ||
         (!encoder && (key == "pad_token_id" || key == "is_decoder"));
}

OrderedJson another(const OrderedJson& value) {
  if (value.is_boolean()) {
    return !value.get<bool>();
  }
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    return number == 0 ? 1 : 2 * number; // heads still divide a width
  }
  if (value.is_number()) {
    return value.get<double>() / 2 + 1e-4;
  }
  if (value.is_array()) {
    return OrderedJson::array(
        {"BertForMaskedLM" == value.at(0) ? "BertForPreTraining" : "BertForMaskedLM"});
  }
  return "another";
}

TEST(PublishedConfigs, EveryFieldIsUsedOrRefused) {
  std::size_t used = 0;
  std::size_t refused = 0;
  for (const File& file : files()) {
    const std::string before = options_text(file.fields);
    const std::string family = file.fields.at("model_type");
    for (const auto& item : file.fields.items()) {
      if (is_without_effect(family, item.key())) {
        continue;
      }
      SCOPED_TRACE(file.name + ", " + item.key());
      if (file.name == "gpt_neo_global" && item.key() == "window_size") {
        continue; // no layer of it has a window
      }
      OrderedJson changed = file.fields;
      changed[item.key()] = another(item.value());
      try {
        EXPECT_NE(options_text(changed), before) << changed[item.key()];
        ++used;
      } catch (const ConfigError& error) {
        // An option may have another name than the field; then the value tells. Sizes that do not
        // fit each other are told as such.
        const std::string said = error.what();
        EXPECT_TRUE(
            said.find(item.key()) != std::string::npos ||
            said.find(item.value().is_number() ? "model options: " : "another") !=
                std::string::npos)
            << said;
        ++refused;
      }
    }
  }
  EXPECT_GT(used, 100);
  EXPECT_GT(refused, 20);
}

TEST(PublishedConfigs, WhatIsWrittenSaysTheSame) {
  // What has another place, or is made of another field.
  const std::set<std::string> elsewhere{
      "rope_parameters",
      "head_dim",
      "dense_act_fn",
      "is_gated_act",
      "scale_decoder_outputs",
      "pretraining_tp",
      "add_cross_attention",
      "tie_word_embeddings",
      "is_decoder"};
  for (const File& file : files()) {
    SCOPED_TRACE(file.name);
    const Options options = options_from_published(file.fields.dump(), "config.json");
    const OrderedJson written = OrderedJson::parse(to_published(options));
    EXPECT_EQ(options_text(written), options_text(options));
    EXPECT_EQ(written.at("architectures"), file.fields.at("architectures"));
    for (const auto& item : file.fields.items()) {
      const std::string& key = item.key();
      const bool of_windows =
          file.name == "gpt_neo_global" && (key == "window_size" || key.starts_with("attention_"));
      if (is_without_effect(file.fields.at("model_type"), key) || of_windows) {
        continue;
      }
      if (written.contains(key)) {
        EXPECT_EQ(written.at(key), item.value()) << key;
      } else {
        EXPECT_TRUE(elsewhere.contains(key)) << key;
      }
    }
  }
}

} // namespace
} // namespace tessera::models
