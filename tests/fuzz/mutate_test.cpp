#include "tests/fuzz/mutate.h"

#include <set>

#include <gtest/gtest.h>

namespace tessera::fuzz {
namespace {

const std::vector<std::string> kSeeds = {"{\"a\": 12}", "[1, 2, 3]", ""};

std::vector<std::string> many(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::string> texts;
  for (int i = 0; i < 2000; ++i) {
    texts.push_back(mutated(kSeeds, random() % kSeeds.size(), random));
  }
  return texts;
}

TEST(Mutate, TheSameSeedGivesTheSameInputs) {
  EXPECT_EQ(many(1), many(1));
  EXPECT_NE(many(1), many(2));
}

TEST(Mutate, InputsDifferAndStaySmall) {
  const auto texts = many(3);
  const std::set<std::string> different(texts.begin(), texts.end());
  EXPECT_GT(different.size(), texts.size() / 2);
  for (const std::string& text : texts) {
    EXPECT_LT(text.size(), 500);
  }
}

} // namespace
} // namespace tessera::fuzz
