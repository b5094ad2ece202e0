#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace tessera::config::test {

namespace {

constexpr int kTrials = 5000;

const std::vector<std::string> kSeeds = {
    R"({"partitions": 2, "microbatches": 4, "pipeline": "custom",
        "custom_schedule": "0F 0B", "partition": {"a": 0}, "seed": 5e8})",
    R"({"smdistributed": {"modelparallel": {"enabled": true,
        "parameters": {"memory_weight": 0.5, "ddp": true}}},
        "mpi": {"enabled": true, "processes_per_host": 4}})",
    R"({"smdistributed": {"modelparallel": {"parameters": "/dev/zero"}}})"};

std::string mutated(std::string text, std::mt19937& random) {
  const std::string alphabet = "{}[]\",:0123456789.eE+-truefalsn \\\xff";
  for (auto edits = 1 + random() % 6; edits > 0; --edits) {
    const std::size_t at = random() % (text.size() + 1);
    switch (random() % 3) {
      case 0:
        text.insert(at, 1, alphabet[random() % alphabet.size()]);
        break;
      case 1:
        text.erase(at, random() % 4);
        break;
      default:
        // A piece of itself: repeated and misplaced keys.
        text.insert(at, text.substr(random() % text.size(), random() % 30));
    }
    if (text.empty()) {
      text = "{";
    }
  }
  return text;
}

TEST(Fuzz, AnyBytesGiveAConfigOrAConfigError) {
  std::mt19937 random(11);
  int valid = 0;
  int refused = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::string text = mutated(kSeeds[random() % kSeeds.size()], random);
    try {
      const Config config = parse_config(text, "fuzz");
      // What was accepted is valid and is written as it was read.
      validate(config);
      EXPECT_EQ(parse_config(to_json(config), "again"), config) << text;
      ++valid;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("fuzz: ")) << text;
      ++refused;
    }
  }
  // The mutations reach both sides.
  EXPECT_GT(valid, 10);
  EXPECT_GT(refused, kTrials / 2);
}

TEST(Fuzz, PureNoise) {
  std::mt19937 random(12);
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string text(random() % 64, ' ');
    for (char& byte : text) {
      byte = static_cast<char>(random() % 256);
    }
    EXPECT_THROW(parse_config(text, "noise"), ConfigError);
  }
}

TEST(Fuzz, DeepNestingIsRefusedWithoutUsingTheStack) {
  for (const std::string open : {"[", "{\"a\":", "{\"partition\":"}) {
    std::string text;
    for (int depth = 0; depth < 200'000; ++depth) {
      text += open;
    }
    EXPECT_THAT(parse_error(text), ::testing::HasSubstr("test.json: nested deeper than 32 levels"));
  }
}

} // namespace

} // namespace tessera::config::test
