#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace tessera::config::test {

namespace {

using ::testing::HasSubstr;

std::string world_error(const Config& config, int world_size) {
  return error_of([&] { check_world(config, world_size); });
}

TEST(World, TheProductOfTheDegreesAndReplicas) {
  EXPECT_EQ(world_error({}, 1), "no error");
  EXPECT_EQ(world_error({.pipeline_parallel_degree = 4}, 4), "no error");
  EXPECT_EQ(world_error({.pipeline_parallel_degree = 2, .ddp = true}, 4), "no error");
  EXPECT_EQ(
      world_error({.pipeline_parallel_degree = 2, .ddp = true, .tensor_parallel_degree = 2}, 8),
      "no error");
}

TEST(World, SaysHowManyProcessesFit) {
  EXPECT_EQ(
      world_error({.pipeline_parallel_degree = 2, .ddp = true}, 5),
      "world size 5 is not a multiple of pipeline_parallel_degree 2 x "
      "tensor_parallel_degree 1 = 2; start 4 or 6 processes, or change a "
      "degree");
  EXPECT_THAT(world_error({.pipeline_parallel_degree = 4}, 2), HasSubstr("start 4 processes"));
  EXPECT_THAT(
      world_error({.pipeline_parallel_degree = 1'000'000, .tensor_parallel_degree = 1'000'000}, 8),
      HasSubstr("= 1000000000000;"));
  EXPECT_THAT(world_error({}, 0), HasSubstr("world size 0"));
}

TEST(World, SeveralReplicasNeedDdp) {
  EXPECT_EQ(
      world_error({.pipeline_parallel_degree = 2}, 4),
      "world size 4 holds 2 replicas of the model (pipeline_parallel_degree 2 "
      "x tensor_parallel_degree 1 = 2) but ddp is false, so their gradients "
      "would not be averaged; add \"ddp\": true, or start 2 processes");
}

TEST(World, EachReplicaHasItsSamples) {
  EXPECT_EQ(world_error({.ddp = true, .replica_samples = {3, 1}}, 2), "no error");
  EXPECT_EQ(
      world_error({.pipeline_parallel_degree = 2, .ddp = true, .replica_samples = {3, 1}}, 4),
      "no error");
  EXPECT_EQ(
      world_error({.pipeline_parallel_degree = 2, .ddp = true, .replica_samples = {3, 1}}, 6),
      "replica_samples has 2 numbers, but world size 6 holds 3 replicas of the model "
      "(pipeline_parallel_degree 2 x tensor_parallel_degree 1 = 2); write one number for each, or "
      "leave it out for equal ones");
}

// Ranks of a tensor-parallel group that bring samples of their own divide a replica's.
TEST(World, SamplesAreDividedOverRanksAndMicrobatches) {
  const Config own{
      .microbatches = 2, .ddp = true, .replica_samples = {8, 6}, .tensor_parallel_degree = 2};
  EXPECT_THAT(
      error_of([&] { validate(own); }),
      HasSubstr("gives replica 1 6 samples, which 2 microbatches on 2 tensor-parallel ranks with "
                "their own each do not divide; write a multiple of 4"));
  Config same = own;
  same.prescaled_batch = true;
  EXPECT_EQ(error_of([&] { validate(same); }), "no error");
}

TEST(World, ShardingDividesTheDataParallelRanks) {
  EXPECT_EQ(world_error({.ddp = true, .sharded_data_parallel_degree = 2}, 4), "no error");
  EXPECT_THAT(
      world_error({.ddp = true, .sharded_data_parallel_degree = 3}, 4),
      HasSubstr("sharded_data_parallel_degree 3 does not divide the 4 "
                "replicas of the model"));
  EXPECT_THAT(
      world_error({.ddp = true, .sharded_data_parallel_degree = 0}, 4),
      HasSubstr("sharded_data_parallel_degree 0"));
  // Ranks of a TP_GROUP hold different shards: what is divided further lies in an RDP_GROUP.
  const Config config{.ddp = true, .tensor_parallel_degree = 4, .sharded_data_parallel_degree = 4};
  EXPECT_EQ(world_error(config, 32), "no error");
  EXPECT_EQ(
      world_error(config, 8),
      "sharded_data_parallel_degree 4 does not divide the 2 replicas of the model in world size 8 "
      "(pipeline_parallel_degree 1 x tensor_parallel_degree 4 = 4); write a divisor of 2");
}

} // namespace

} // namespace tessera::config::test
