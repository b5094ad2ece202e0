#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/doctor/example.h"

namespace tessera::cli::doctor {
namespace {

using test::healthy;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<Finding> judge_one(const RankFacts& facts) {
  Examination examination;
  examination.ranks = {facts};
  return judge(examination);
}

/// The one finding, whole, with a mark when it is fatal.
std::string only(const std::vector<Finding>& findings) {
  if (findings.size() != 1) {
    return std::to_string(findings.size()) + " findings";
  }
  return (findings[0].fatal ? "FATAL " : "") + findings[0].what + "; " + findings[0].advice;
}

TEST(Judge, AHealthyMachineHasNoFindings) {
  EXPECT_THAT(judge_one(healthy(0)), IsEmpty());
  EXPECT_THAT(judge({}), IsEmpty());
}

TEST(Judge, TooFewThreadsOfMpiAreFatal) {
  RankFacts facts = healthy(0);
  facts.thread_level = "serialized";
  const auto findings = judge_one(facts);
  EXPECT_TRUE(any_fatal(findings));
  EXPECT_THAT(only(findings), HasSubstr("'serialized' where 'multiple'"));
}

TEST(Judge, WrongProductsAreFatalNaNToo) {
  RankFacts facts = healthy(0);
  facts.products.f32_error = 0.5;
  EXPECT_TRUE(any_fatal(judge_one(facts)));
  facts.products.f32_error = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(any_fatal(judge_one(facts)));
}

TEST(Judge, TheReferenceBlasIsNamedWithItsPackage) {
  RankFacts facts = healthy(0);
  facts.products.optimised = false;
  facts.products.provider = "/usr/lib/blas/libblas.so.3";
  facts.products.f32_gflops = 4;
  const auto findings = judge_one(facts);
  EXPECT_FALSE(any_fatal(findings));
  EXPECT_THAT(only(findings), HasSubstr("/usr/lib/blas/libblas.so.3"));
  EXPECT_THAT(only(findings), HasSubstr("libopenblas0-openmp"));
}

TEST(Judge, SlowProductsCountByThread) {
  RankFacts facts = healthy(0);
  facts.products.f32_gflops = 17;
  EXPECT_THAT(judge_one(facts), IsEmpty());
  facts.threads = 4;
  EXPECT_THAT(only(judge_one(facts)), HasSubstr("below 8 GFLOP/s a thread"));
}

TEST(Judge, AFasterKernelIsAdvisedOnlyWhenItIsFaster) {
  RankFacts facts = healthy(0);
  facts.products.trial = KernelTrial{"SkylakeX", 85};
  EXPECT_THAT(judge_one(facts), IsEmpty());
  facts.products.trial->f32_gflops = 160;
  EXPECT_THAT(only(judge_one(facts)), HasSubstr("set OPENBLAS_CORETYPE=SkylakeX"));
}

TEST(Judge, ThreadsAndRanksAreHeldAgainstCores) {
  RankFacts facts = healthy(0);
  facts.local_size = 3;
  EXPECT_THAT(only(judge_one(facts)), HasSubstr("set OMP_NUM_THREADS=1"));
  facts.local_size = 5;
  facts.threads = 1;
  EXPECT_THAT(only(judge_one(facts)), HasSubstr("4 cores for 5 ranks"));
}

TEST(Judge, TheControlGroupsLimitCounts) {
  RankFacts facts = healthy(0);
  facts.memory.group_limit = std::int64_t{1} << 30;
  facts.memory.group_used = std::int64_t{900} << 20;
  EXPECT_THAT(only(judge_one(facts)), HasSubstr("124 MiB of memory left"));
  facts.memory.group_used = std::int64_t{100} << 20;
  EXPECT_THAT(judge_one(facts), IsEmpty());
}

TEST(Judge, ClocksAreForgivenWhatTheMeasurementCannotTell) {
  RankFacts facts = healthy(0);
  facts.clock_offset_us = -4000;
  facts.clock_error_us = 3500;
  EXPECT_THAT(judge_one(facts), IsEmpty());
  facts.clock_error_us = 10;
  EXPECT_THAT(only(judge_one(facts)), HasSubstr("off against rank 0's by 4"));
}

TEST(Judge, RanksWithOneTroubleShareAFindingAndFatalOnesComeFirst) {
  Examination examination;
  examination.ranks = {healthy(0, 2), healthy(1, 2), healthy(2, 2)};
  examination.ranks[0].products.optimised = false;
  examination.ranks[1].products.optimised = false;
  examination.ranks[2].thread_level = "single";
  examination.ranks[2].mpi = "Other MPI";
  examination.ranks[2].processor = "Older";
  const auto findings = judge(examination);
  ASSERT_THAT(findings, SizeIs(4));
  EXPECT_TRUE(findings[0].fatal);
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
  EXPECT_THAT(findings[1].ranks, ElementsAre(0, 1));
  EXPECT_THAT(findings[2].what, HasSubstr("Other MPI here"));
  EXPECT_THAT(findings[3].what, HasSubstr("host south has another processor"));
}

} // namespace
} // namespace tessera::cli::doctor
