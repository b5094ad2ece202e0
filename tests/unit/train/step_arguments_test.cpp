// A microbatch's part of an argument, whatever the argument holds its tensors in.
#include "tessera/train/step_arguments.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using torch::Tensor;

struct Graph {
  Tensor nodes;
  Tensor edges;
};
struct Batch {
  Graph graph;
  std::vector<Tensor> levels;
  std::map<std::string, Tensor> named;
  std::optional<Tensor> mask;
  int length = 0;
};

Tensor rows(int from, int to) {
  return torch::arange(from, to).view({-1, 1});
}

TEST(Split, TensorsInsideStructsAreSliced) {
  const Batch batch{{rows(0, 4), rows(10, 14)}, {rows(20, 24)}, {{"x", rows(30, 34)}}, {}, 7};
  const Batch part = detail::slice_argument(batch, 2, 1, 0, 0);
  EXPECT_TRUE(torch::equal(part.graph.nodes, rows(2, 4)));
  EXPECT_TRUE(torch::equal(part.graph.edges, rows(12, 14)));
  EXPECT_TRUE(torch::equal(part.levels.at(0), rows(22, 24)));
  EXPECT_TRUE(torch::equal(part.named.at("x"), rows(32, 34)));
  EXPECT_FALSE(part.mask.has_value());
  EXPECT_EQ(part.length, 7);
}

TEST(Split, ABatchOfADataLoaderAndAnotherAxis) {
  const torch::data::Example<> batch(torch::arange(12).view({3, 4}), torch::arange(4).view({1, 4}));
  const auto part = detail::slice_argument(batch, 2, 1, 1, 0);
  EXPECT_TRUE(torch::equal(part.data, batch.data.narrow(1, 2, 2)));
  EXPECT_TRUE(torch::equal(part.target, batch.target.narrow(1, 2, 2)));
}

TEST(Split, WhatDoesNotDivideNamesTheArgument) {
  try {
    detail::slice_argument(Graph{rows(0, 4), rows(0, 3)}, 2, 0, 0, 5);
    FAIL() << "three rows were split in two";
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("argument 5"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("3 rows"));
  }
}

struct Sentence {
  torch::nn::utils::rnn::PackedSequence words;
};

TEST(Split, PackedSequencesAreRefusedSinceTheirRowsAreTimeSteps) {
  const Sentence sentence{
      torch::nn::utils::rnn::pack_padded_sequence(torch::ones({4, 2, 3}), torch::tensor({4, 2}))};
  EXPECT_EQ(detail::slice_argument(sentence, 1, 0, 0, 0).words.data().size(0), 6);
  try {
    detail::slice_argument(sentence, 2, 0, 0, 3);
    FAIL() << "the rows of a packed sequence were split";
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("argument 3"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("pack_padded_sequence"));
  }
}

TEST(Split, OptionsNameArgumentsThatAreThere) {
  const auto message = [](const std::vector<int>& whole, const std::map<int, int>& axes) {
    try {
      detail::check_positions(whole, axes, 2);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({1}, {{0, 1}}), "no error");
  EXPECT_THAT(
      message({2}, {}), testing::HasSubstr("non_split_inputs of the step names argument 2"));
  EXPECT_THAT(message({-1}, {}), testing::HasSubstr("positions from 0 to 1"));
  EXPECT_THAT(message({}, {{5, 0}}), testing::HasSubstr("input_split_axes"));
  EXPECT_THAT(message({0}, {{0, 1}}), testing::HasSubstr("name it in one"));
}

} // namespace
} // namespace tessera
