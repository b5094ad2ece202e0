// What travels: every type comes back as it was packed, in kinds that messages carry.
#include "tessera/tensor/value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/nn/module/module.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;

template <typename T>
T round_trip(const T& value) {
  return unpack<T>(pack(value));
}

/// Messages write these kinds themselves; others would go through the pickler.
bool is_plain(const c10::IValue& value) {
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::all_of(elements.begin(), elements.end(), is_plain);
  }
  return value.isTensor() || value.isNone() || value.isBool() || value.isInt() ||
         value.isDouble() || value.isString();
}

struct Heads {
  Tensor policy;
  Tensor value;
};
enum class Phase { kTrain = 2, kTest = 5 };
enum class Small : std::uint8_t { kFirst };
struct Output {
  Heads heads;
  std::vector<Heads> levels;
  std::map<std::string, Tensor> features;
  std::optional<Tensor> mask;
  Phase phase = Phase::kTrain;
  std::string name;
  double temperature = 1;
  std::array<std::int64_t, 2> grid = {};
};

TEST(Value, NestedStructsComeBackFieldByField) {
  const Output value{
      {torch::ones(1), torch::ones(2)},
      {{torch::ones(3), {}}, {torch::ones(4), torch::ones(5)}},
      {{"skip", torch::ones(6)}},
      torch::ones(7),
      Phase::kTest,
      "eight",
      9.5,
      {10, 11}};
  const c10::IValue packed = pack(value);
  EXPECT_TRUE(is_plain(packed));
  std::vector<std::int64_t> elements;
  for_each_tensor(packed, [&](const Tensor& t) { elements.push_back(t.numel()); });
  EXPECT_THAT(elements, ElementsAre(1, 2, 3, 4, 5, 6, 7));

  const auto back = unpack<Output>(packed);
  EXPECT_TRUE(back.heads.value.is_same(value.heads.value));
  ASSERT_EQ(back.levels.size(), 2U);
  EXPECT_FALSE(back.levels[0].value.defined());
  EXPECT_TRUE(back.levels[1].policy.is_same(value.levels[1].policy));
  EXPECT_TRUE(back.features.at("skip").is_same(value.features.at("skip")));
  EXPECT_TRUE(back.mask->is_same(*value.mask));
  EXPECT_EQ(back.phase, Phase::kTest);
  EXPECT_EQ(back.name, "eight");
  EXPECT_EQ(back.temperature, 9.5);
  EXPECT_THAT(back.grid, ElementsAre(10, 11));
}

struct Tree {
  Tensor word;
  std::vector<Tree> children;
};

TEST(Value, AStructMayHoldItselfInAContainer) {
  const Tree tree{torch::ones(1), {{torch::ones(2), {}}, {torch::ones(3), {{torch::ones(4), {}}}}}};
  const Tree back = round_trip(tree);
  EXPECT_TRUE(back.children.at(1).children.at(0).word.is_same(tree.children[1].children[0].word));
}

class Hidden {
 public:
  explicit Hidden(Tensor state) : state_(std::move(state)) {}
  const Tensor& state() const {
    return state_;
  }

 private:
  Tensor state_;
};
static_assert(!detail::Packable<Hidden>);
static_assert(!detail::Packable<std::shared_ptr<Heads>> && !detail::Packable<Heads*>);

struct Opaque {
  Tensor x;
  Hidden hidden;
};
static_assert(!detail::Packable<Opaque>, "a struct travels only if each of its fields does");

/// The user's own way wins over the built-in one.
struct Scaled {
  Tensor x;
};

} // namespace

template <>
struct Value<Scaled> {
  static c10::IValue pack(const Scaled& value) {
    return value.x * 2;
  }
  static Scaled unpack(const c10::IValue& value) {
    return {value.toTensor()};
  }
};

namespace {

TEST(Value, ASpecialisationWinsOverTheFields) {
  EXPECT_EQ(round_trip(Scaled{torch::ones({})}).x.item<float>(), 2);
}

TEST(Value, MapsAndSetsDoNotDependOnTheirHistory) {
  std::unordered_map<std::string, Tensor> one, two;
  std::unordered_set<std::int64_t> few, many;
  for (std::int64_t i = 0; i < 100; ++i) {
    one[std::to_string(i)] = torch::full({}, i);
    few.insert(i);
  }
  many.reserve(5000);
  two.reserve(5000);
  for (std::int64_t i = 100; i-- > 0;) {
    two[std::to_string(i)] = torch::full({}, i);
    many.insert(i);
  }
  const auto keys = [](const c10::IValue& value) {
    std::string text;
    for (const auto& entry : value.toTupleRef().elements()) {
      text += entry.isTuple() ? entry.toTupleRef().elements()[0].toStringRef()
                              : std::to_string(entry.toInt());
    }
    return text;
  };
  EXPECT_EQ(keys(pack(one)), keys(pack(two)));
  EXPECT_EQ(keys(pack(few)), keys(pack(many)));
  EXPECT_EQ(round_trip(one).at("42").item<int>(), 42);
  EXPECT_EQ(round_trip(few), many);
}

TEST(Value, NumbersThatATypeDoesNotHoldAreErrors) {
  EXPECT_EQ(unpack<int>(pack(std::int64_t{-7})), -7);
  EXPECT_EQ(unpack<std::uint64_t>(pack(~std::uint64_t{0})), ~std::uint64_t{0});
  EXPECT_THROW(unpack<int>(pack(std::int64_t{1} << 40)), CommError);
  EXPECT_THROW(unpack<std::int8_t>(pack(300)), CommError);
  EXPECT_THROW(unpack<unsigned>(pack(-3)), CommError);
  EXPECT_THROW(unpack<int>(pack(1.5)), CommError);
  EXPECT_THROW(unpack<Small>(pack(300)), CommError);
  EXPECT_THROW(unpack<Phase>(pack(1.5)), CommError);
  EXPECT_EQ(unpack<float>(pack(0.1)), 0.1F);
  EXPECT_TRUE(std::isinf(unpack<float>(pack(std::numeric_limits<double>::infinity()))));
  EXPECT_TRUE(std::isnan(unpack<float>(pack(std::numeric_limits<double>::quiet_NaN()))));
  EXPECT_THROW(unpack<float>(pack(1e300)), CommError);
  EXPECT_THROW(unpack<double>(pack(3)), CommError);
  EXPECT_THROW((unpack<std::pair<int, int>>(pack(std::make_tuple(1, 2, 3)))), Error);
}

TEST(Value, ContainersByIntegerKeysVariantsAndVectorsOfBool) {
  const std::map<int, Tensor> levels{{-1, torch::ones(1)}, {4, torch::ones(2)}};
  EXPECT_TRUE(round_trip(levels).at(4).is_same(levels.at(4)));
  EXPECT_EQ(round_trip(std::set<std::string>{"b", "a"}), (std::set<std::string>{"a", "b"}));
  EXPECT_THAT(round_trip(std::vector<bool>{true, false}), ElementsAre(true, false));
  using Choice = std::variant<std::string, Tensor, std::int64_t>;
  EXPECT_EQ(std::get<2>(round_trip(Choice(std::int64_t{7}))), 7);
  EXPECT_EQ(std::get<0>(round_trip(Choice("text"))), "text");
}

TEST(Value, WhatLayersTakeAndReturn) {
  using State = c10::optional<std::tuple<Tensor, Tensor>>;
  const State state = std::make_tuple(torch::ones(1), torch::ones(2));
  EXPECT_TRUE(std::get<1>(*round_trip(state)).is_same(std::get<1>(*state)));
  EXPECT_FALSE(round_trip(State()).has_value());
  const c10::optional<std::vector<std::int64_t>> size({3, 4});
  EXPECT_EQ(*round_trip(size), *size);

  EXPECT_EQ(round_trip(at::Device(at::kCUDA, 3)), at::Device(at::kCUDA, 3));
  EXPECT_EQ(round_trip(at::kBFloat16), at::kBFloat16);
  EXPECT_EQ(round_trip(at::kSparse), at::kSparse);
  EXPECT_EQ(round_trip(at::Scalar(2.5)).toDouble(), 2.5);
  EXPECT_TRUE(round_trip(at::Scalar(3)).isIntegral(false));
  EXPECT_TRUE(round_trip(at::Scalar(true)).isBoolean());
  const auto options = round_trip(at::TensorOptions().dtype(at::kDouble).requires_grad(true));
  EXPECT_TRUE(options.dtype() == at::kDouble && options.requires_grad());
  EXPECT_FALSE(options.device_opt().has_value()) << "what was not set stays unset";
  const torch::nn::EmbeddingBagMode mode = torch::kMax;
  EXPECT_EQ(torch::enumtype::get_enum_name(round_trip(mode)), "kMax");

  const torch::nn::ASMoutput adaptive(torch::ones(3), {});
  EXPECT_TRUE(round_trip(adaptive).output.is_same(adaptive.output));
  torch::OrderedDict<std::string, Tensor> dict;
  dict.insert("z", torch::ones(1));
  dict.insert("a", torch::ones(2));
  EXPECT_THAT(round_trip(dict).keys(), ElementsAre("z", "a"));
  const torch::data::Example<> batch(torch::ones(3), torch::ones(4));
  EXPECT_TRUE(round_trip(batch).target.is_same(batch.target));
  EXPECT_TRUE(is_plain(pack(std::make_tuple(
      state, size, at::Device("cpu"), at::kFloat, options, mode, adaptive, dict, batch))));
}

TEST(Value, PackedSequencesKeepTheirOrder) {
  const auto packed = torch::nn::utils::rnn::pack_padded_sequence(
      torch::arange(24.0).view({4, 3, 2}), torch::tensor({2, 4, 1}), false, false);
  const auto [padded, lengths] = torch::nn::utils::rnn::pad_packed_sequence(round_trip(packed));
  const auto [expected, unused] = torch::nn::utils::rnn::pad_packed_sequence(packed);
  EXPECT_TRUE(torch::equal(padded, expected));
  EXPECT_TRUE(torch::equal(lengths, torch::tensor({2, 4, 1})));
}

struct ResizeImpl : torch::nn::Module {
  Tensor forward(
      const Tensor& x,
      at::IntArrayRef size,
      const TorchOptional<at::IntArrayRef>& more,
      at::OptionalIntArrayRef last,
      std::string_view word) {
    return x.new_full(
        {1},
        size[1] * 1000 + (more ? (*more)[0] : 1) * 100 + (last ? (*last)[0] : 2) * 10 +
            static_cast<int>(word.size()));
  }
};

TEST(Value, ArgumentsThatReferToTheCallersDataAreOwnedByTheCallee) {
  using Call = detail::ModuleCall<
      ResizeImpl,
      const Tensor&,
      at::IntArrayRef,
      const TorchOptional<at::IntArrayRef>&,
      at::OptionalIntArrayRef,
      std::string_view>;
  c10::IValue packed;
  {
    const std::vector<std::int64_t> size{3, 4}, more{7};
    const std::string word = "a word that is too long for the string itself";
    packed = pack(std::make_tuple(
        torch::ones(1),
        at::IntArrayRef(size),
        TorchOptional<at::IntArrayRef>(more),
        at::OptionalIntArrayRef(),
        std::string_view(word)));
  }
  ResizeImpl impl;
  EXPECT_EQ(Call::invoke(impl, packed, -1, -1).toTensor().item<int>(), 4000 + 700 + 20 + 45);
}

} // namespace
} // namespace tessera
