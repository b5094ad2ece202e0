#include "models/data/mixture.h"

#include <gmock/gmock.h>

#include "models/data/data_folder.h"
#include "tests/unit/data/folder.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

MixtureOptions
options_of(std::uint64_t batch = 4, std::uint64_t before = 0, std::uint64_t all = 0) {
  MixtureOptions options;
  options.weights = {1, 3, 6};
  options.samples = {50, 7, 1000};
  options.batch = batch;
  options.before = before;
  options.all = all;
  options.seed = 11;
  return options;
}

TEST(Mixture, PartsComeAsOftenAsTheirWeightsSay) {
  MixtureSampler sampler(options_of(1000));
  std::vector<double> counts(3);
  for (int step = 0; step < 30; ++step) {
    for (const Draw& draw : sampler.next()) {
      ++counts.at(draw.part);
    }
  }
  // Five standard deviations of a binomial distribution.
  EXPECT_NEAR(counts[0] / 30000, 0.1, 0.009);
  EXPECT_NEAR(counts[1] / 30000, 0.3, 0.014);
  EXPECT_NEAR(counts[2] / 30000, 0.6, 0.015);
}

TEST(Mixture, EachPartHasEpochsOfItsOwn) {
  MixtureSampler sampler(options_of(500));
  std::vector<std::vector<std::uint64_t>> seen(3);
  for (const Draw& draw : sampler.next()) {
    seen.at(draw.part).push_back(draw.sample);
  }
  ASSERT_GT(seen[1].size(), 70u);
  for (std::size_t epoch = 0; epoch < 10; ++epoch) {
    std::vector<bool> found(7);
    for (std::size_t i = 0; i < 7; ++i) {
      found[seen[1][7 * epoch + i]] = true;
    }
    EXPECT_EQ(found, std::vector<bool>(7, true)) << epoch;
  }
  // What a training on the first folder alone takes, in its order.
  Sampler alone({.samples = 50, .batch = seen[0].size(), .seed = 11});
  EXPECT_EQ(alone.next(), seen[0]);
}

TEST(Mixture, OnePartIsASampler) {
  MixtureOptions options;
  options.weights = {0.3};
  options.samples = {29};
  options.batch = 4;
  options.before = 4;
  options.all = 12;
  options.seed = 7;
  MixtureSampler mixture(options);
  Sampler sampler({.samples = 29, .batch = 4, .dp_rank = 1, .dp_size = 3, .seed = 7});
  for (int step = 0; step < 9; ++step) {
    std::vector<std::uint64_t> samples;
    for (const Draw& draw : mixture.next()) {
      samples.push_back(draw.sample);
    }
    EXPECT_EQ(samples, sampler.next());
    EXPECT_EQ(mixture.state(), to_json(sampler.state()));
  }
}

TEST(Mixture, AStepIsTheSameUnderEveryLayoutAndGoesOn) {
  MixtureSampler alone(options_of(12));
  std::vector<std::vector<Draw>> steps;
  std::vector<std::string> states;
  for (int step = 0; step < 8; ++step) {
    states.push_back(alone.state());
    steps.push_back(alone.next());
  }
  const std::vector<std::vector<std::uint64_t>> layouts = {
      {6, 6}, {4, 4, 4}, {3, 3, 3, 3}, {9, 3}, {1, 5, 6}};
  for (const std::vector<std::uint64_t>& batches : layouts) {
    std::vector<MixtureSampler> ranks;
    std::uint64_t before = 0;
    for (const std::uint64_t batch : batches) {
      ranks.emplace_back(options_of(batch, before, 12));
      // From a checkpoint of one rank.
      ranks.back().set_state(states[3]);
      before += batch;
    }
    for (std::size_t step = 3; step < 8; ++step) {
      std::vector<Draw> joined;
      for (auto& rank : ranks) {
        const auto own = rank.next();
        joined.insert(joined.end(), own.begin(), own.end());
      }
      EXPECT_EQ(joined, steps[step]) << batches.size() << " ranks, step " << step;
    }
    EXPECT_EQ(ranks[0].state(), alone.state());
  }
  auto other = options_of(12);
  other.seed = 12;
  EXPECT_NE(MixtureSampler(other).next(), steps[0]);
}

TEST(Mixture, ErrorsAreClear) {
  const auto message = [](auto change) {
    return message_of([&] {
      auto options = options_of();
      change(options);
      MixtureSampler sampler(options);
    });
  };
  EXPECT_THAT(message([](auto& o) { o.weights = {1, 0, 1}; }), HasSubstr("weight 0"));
  EXPECT_THAT(message([](auto& o) { o.weights = {1}; }), HasSubstr("1 weights for 3 parts"));
  EXPECT_THAT(message([](auto& o) { o.samples[1] = 0; }), HasSubstr("0 samples"));
  EXPECT_THAT(message([](auto& o) { o.batch = 0; }), HasSubstr("batch of 0"));
  EXPECT_THAT(
      message([](auto& o) { o.before = 1; }),
      HasSubstr("a batch of 4 samples behind 1 of other ranks, of 4 in all"));
  MixtureSampler sampler(options_of());
  EXPECT_THAT(
      message_of<CheckpointError>([&] { sampler.set_state(R"({"epoch": 0, "index": 3})"); }),
      HasSubstr("1 folders of data, this job has 3"));
  EXPECT_THAT(
      message_of<CheckpointError>([&] {
        sampler.set_state(
            R"({"drawn": 3, "parts": [{"epoch": 0, "index": 0}, {"epoch": 0, "index": 7},)"
            R"({"epoch": 0, "index": 0}]})");
      }),
      HasSubstr("index 7 of an epoch of 7"));
  EXPECT_THAT(
      message_of<CheckpointError>([&] { sampler.set_state(R"({"parts": []})"); }),
      HasSubstr("drawn"));
}

class Folders : public FolderTest {
 protected:
  MixturePart folder(const std::string& name, int vocab, const std::string& tokenizer) const {
    std::filesystem::create_directory(path(name));
    std::vector<std::int32_t> tokens(30, static_cast<std::int32_t>(name.size()));
    write_token_file(path(name) + "/" + kTrainFile, tokens, vocab);
    write_token_file(path(name) + "/" + kValidationFile, tokens, vocab);
    write_file(path(name) + "/" + kTokenizerFile, tokenizer);
    return {path(name), 1};
  }
  static std::vector<DataHashes> hashes(const std::vector<MixturePart>& parts) {
    return hashes_of_parts(
        parts, open_parts(parts, kTrainFile, true), open_parts(parts, kValidationFile, true));
  }
};

TEST_F(Folders, OfOtherTokenizersDoNotMix) {
  const auto a = folder("a", 100, "one");
  EXPECT_EQ(message_of([&] { hashes({a, folder("bb", 100, "one")}); }), "no error");
  EXPECT_THAT(
      message_of([&] {
        hashes({a, folder("c", 100, "two")});
      }),
      AllOf(HasSubstr(path("a")), HasSubstr(path("c")), HasSubstr("another tokenizer")));
  EXPECT_THAT(
      message_of([&] {
        hashes({a, folder("d", 101, "one")});
      }),
      AllOf(HasSubstr("vocabulary of 101"), HasSubstr("of 100")));
}

TEST_F(Folders, WhatDiffersIsNamed) {
  std::vector<MixturePart> parts{folder("a", 100, "one"), folder("bb", 100, "one")};
  const std::string kept = hashes_to_json(parts, hashes(parts));
  EXPECT_EQ(mixture_differences(kept, parts, hashes(parts)), "");
  auto heavier = parts;
  heavier[1].weight = 2;
  EXPECT_EQ(
      mixture_differences(kept, heavier, hashes(heavier)),
      "  weight of " + path("bb") + ": the checkpoint has 1, the job 2");
  auto scaled = parts;
  scaled[0].weight = scaled[1].weight = 0.3;
  EXPECT_EQ(mixture_differences(kept, scaled, hashes(scaled)), "");
  const std::vector<MixturePart> other{parts[0], folder("ccc", 100, "one")};
  EXPECT_THAT(
      mixture_differences(kept, other, hashes(other)),
      AllOf(HasSubstr("train.tokens"), HasSubstr(path("ccc"))));
  const std::vector<MixturePart> first{parts[0]};
  EXPECT_EQ(
      mixture_differences(kept, first, hashes(first)), "  the checkpoint has 2 folders, the job 1");
  // One folder is kept as it was before there were mixtures.
  EXPECT_EQ(hashes_to_json(first, hashes(first)), to_json(hashes(first)[0]));
  EXPECT_EQ(mixture_differences(to_json(hashes(first)[0]), first, hashes(first)), "");
  // The same content elsewhere is the same data.
  std::filesystem::rename(path("a"), path("moved"));
  const std::vector<MixturePart> moved{{path("moved"), 1}, parts[1]};
  EXPECT_EQ(mixture_differences(kept, moved, hashes(moved)), "");
  EXPECT_EQ(to_text(heavier), path("a") + " x 0.333333 + " + path("bb") + " x 0.666667");
}

} // namespace
} // namespace tessera::data
