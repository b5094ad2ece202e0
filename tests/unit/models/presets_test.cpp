#include "models/presets.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using testing::HasSubstr;

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

// Published sizes, as rounded there.
TEST(Presets, SizesAreThePublishedOnes) {
  const auto expect_about = [](const char* name, double parameters) {
    const auto found = static_cast<double>(find_preset(name).parameters);
    EXPECT_NEAR(found / parameters, 1, 0.02) << name << " " << found;
  };
  expect_about("gpt2", 124.4e6);
  expect_about("gpt2-medium", 354.8e6);
  expect_about("gpt2-xl", 1557.6e6);
  expect_about("gpt3-6.7b", 6.7e9);
  expect_about("gpt3-175b", 175e9);
  expect_about("t5-small", 60.5e6);
  expect_about("t5-base", 222.9e6);
  expect_about("t5-large", 737.7e6);
  expect_about("t5-3b", 2.85e9);
  expect_about("t5-11b", 11.3e9);
  expect_about("bert-base", 110e6);
  expect_about("bert-large", 336e6);
  expect_about("bert-10b", 10e9);
  expect_about("roberta-base", 125e6);
  expect_about("roberta-large", 355e6);
  expect_about("roberta-10b", 9.9e9);
  expect_about("gpt-tiny", 0.55e6);
  expect_about("gpt-mini", 3.1e6);
}

TEST(Presets, AnUnknownNameNamesTheNearest) {
  EXPECT_THAT(message_of([] { find_preset("gpt2-medum"); }), HasSubstr("\"gpt2-medium\""));
}

TEST(Presets, OverridesChangeThePreset) {
  const Preset preset =
      resolve_preset("gpt-mini", R"({"n_layer": 2, "n_positions": 64, "dropout": 0.25})");
  const auto& options = std::get<GptOptions>(preset.options);
  EXPECT_EQ(options.n_layer, 2);
  EXPECT_EQ(options.n_embd, 192);
  EXPECT_EQ(options.dropout, 0.25);
  EXPECT_EQ(preset.sample.sequence, 64);
  EXPECT_LT(preset.parameters, find_preset("gpt-mini").parameters);
}

TEST(Presets, WrongOverridesAreExplained) {
  const auto with = [](const char* name, const char* overrides) {
    return message_of([&] { resolve_preset(name, overrides); });
  };
  EXPECT_THAT(
      with("gpt-mini", R"({"n_layers": 2})"),
      testing::AllOf(HasSubstr("\"n_layers\""), HasSubstr("\"n_layer\"")));
  EXPECT_THAT(
      with("gpt-mini", R"({"n_layer": 2.5})"),
      testing::AllOf(HasSubstr("2.5"), HasSubstr("an integer from 1 to 65536")));
  EXPECT_THAT(with("gpt-mini", R"({"n_layer": 0})"), HasSubstr("found 0"));
  EXPECT_THAT(with("gpt-mini", R"({"dropout": 1.5})"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(
      with("gpt-mini", R"({"n_head": 5})"),
      testing::AllOf(HasSubstr("192"), HasSubstr("n_head = 5")));
  EXPECT_THAT(with("bert-tiny", R"({"roberta": 1})"), HasSubstr("true or false"));
  EXPECT_THAT(with("t5-tiny", "[1]"), HasSubstr("found [1]; write an object"));
  EXPECT_THAT(with("ncf", R"({"first_layer": 100})"), HasSubstr("halved"));
}

TEST(Presets, OptionsSurviveTheirText) {
  const auto& preset = find_preset("t5-3b");
  const auto& options = std::get<T5Options>(preset.options);
  const T5Options back = t5_options(to_json(options));
  EXPECT_EQ(count_parameters(back), preset.parameters);
  EXPECT_EQ(back.d_kv, 128);
  EXPECT_EQ(to_json(back), to_json(options));
}

TEST(Presets, AnOutputLayerOfItsOwnCounts) {
  const auto tied = resolve_preset("gpt-tiny", "{}");
  const auto own = resolve_preset("gpt-tiny", R"({"tie_word_embeddings": false})");
  EXPECT_EQ(own.parameters - tied.parameters, 2048 * 96);
}

} // namespace
} // namespace tessera::models
