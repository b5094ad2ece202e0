#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

#include "tests/unit/doctor/example.h"

namespace tessera::cli::doctor {
namespace {

using nlohmann::json;
using test::healthy;
using testing::HasSubstr;
using testing::Not;

Examination of_two() {
  Examination examination;
  examination.ranks = {healthy(0, 2), healthy(1, 2)};
  examination.ranks[1].clock_offset_us = -12.5;
  examination.ranks[1].clock_error_us = 3;
  examination.ranks[0].products.trial = KernelTrial{"SkylakeX", 150};
  examination.ranks[0].memory.group_limit = std::int64_t{8} << 30;
  examination.ranks[0].memory.group_used = std::int64_t{1} << 30;
  examination.pairs = {{0, 1, 2.5, 4e9, true}};
  examination.all_reduce_bytes_per_s = 2e9;
  examination.findings = judge(examination);
  return examination;
}

TEST(Facts, TravelAsText) {
  const Examination examination = of_two();
  for (const RankFacts& facts : examination.ranks) {
    const std::string text = to_text(facts);
    EXPECT_EQ(to_text(rank_facts_from_text(text)), text);
  }
  const RankFacts back = rank_facts_from_text(to_text(examination.ranks.front()));
  EXPECT_EQ(back.products.trial->kernel, "SkylakeX");
  EXPECT_EQ(back.memory.group_limit, std::int64_t{8} << 30);
  EXPECT_THROW(rank_facts_from_text("{}"), Error);
  EXPECT_THROW(rank_facts_from_text("rank 1"), Error);
}

TEST(Facts, JsonHoldsEverything) {
  const json value = json::parse(to_json(of_two()));
  EXPECT_EQ(value.at("version"), 1);
  EXPECT_EQ(value.at("ranks").size(), 2);
  EXPECT_EQ(value.at("ranks")[1].at("clock_offset_us"), -12.5);
  EXPECT_EQ(value.at("ranks")[1].at("memory").at("group_limit_bytes"), nullptr);
  EXPECT_EQ(value.at("pairs")[0].at("ranks"), json({0, 1}));
  EXPECT_EQ(value.at("pairs")[0].at("shared_memory"), true);
  EXPECT_EQ(value.at("findings").size(), 1); // the faster kernel
  EXPECT_EQ(value.at("findings")[0].at("ranks"), json::array({0}));
  EXPECT_EQ(value.at("training_possible"), true);

  Examination broken = of_two();
  broken.ranks[1].thread_level = "single";
  broken.findings = judge(broken);
  EXPECT_EQ(json::parse(to_json(broken)).at("training_possible"), false);
}

TEST(Facts, TablesShowHostsRanksPairsAndFindings) {
  const std::string text = to_tables(of_two());
  EXPECT_THAT(text, HasSubstr("host north"));
  EXPECT_THAT(text, Not(HasSubstr("host south")));
  EXPECT_THAT(text, HasSubstr("kernel Haswell"));
  EXPECT_THAT(text, HasSubstr("1.00 GiB used of 8.00 GiB"));
  EXPECT_THAT(text, HasSubstr("80.5"));
  EXPECT_THAT(text, HasSubstr("0.15 times as fast as f32 ones: train in f32"));
  EXPECT_THAT(text, HasSubstr("-12.5 us"));
  EXPECT_THAT(text, HasSubstr("3.73 GiB/s")); // 4e9 B/s
  EXPECT_THAT(text, HasSubstr("2.50 us"));
  EXPECT_THAT(text, HasSubstr("all-reduce of 16 MiB over 2 ranks: 1.86 GiB/s"));
  EXPECT_THAT(text, HasSubstr("warning  OpenBLAS picked"));
  EXPECT_THAT(text, Not(HasSubstr("nothing to mend")));
}

TEST(Facts, OneHealthyRankNeedsNoTableOfPairs) {
  Examination examination;
  examination.ranks = {healthy(0)};
  const std::string text = to_tables(examination);
  EXPECT_THAT(text, Not(HasSubstr("between ranks")));
  EXPECT_THAT(text, HasSubstr("nothing to mend"));
}

TEST(Facts, RanksLeftOutOfThePairsAreNamed) {
  Examination examination = of_two();
  examination.ranks.push_back(healthy(2, 2));
  examination.unmeasured = {2};
  EXPECT_THAT(to_tables(examination), HasSubstr("not measured: rank 2\n"));
}

} // namespace
} // namespace tessera::cli::doctor
