// Objects in files of the ranks: what was saved comes back, under names that tell the ranks apart.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "tessera/train/host_objects.h"

#include "tests/mpi/runtime/support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kept = std::tuple<std::string, std::map<std::string, torch::Tensor>, std::vector<double>>;

void create(const SharedFolder& folder) {
  folder.change([](const std::filesystem::path& path) { std::filesystem::create_directory(path); });
}

Kept object_of(int rank) {
  // A row of a matrix: what is not its own stays out of the file.
  const torch::Tensor row = torch::arange(2000000.F).view({2, -1})[0].narrow(0, rank, 3);
  return {
      str("of rank ", rank),
      {{"row", row}, {"halves", torch::full({2, 2}, rank, torch::kBFloat16)}},
      {0.5, -1.0 * rank}};
}

void expect_object_of(int rank, const Kept& found) {
  const Kept wanted = object_of(rank);
  EXPECT_EQ(std::get<0>(found), std::get<0>(wanted));
  EXPECT_EQ(std::get<2>(found), std::get<2>(wanted));
  ASSERT_EQ(std::get<1>(found).size(), 2U);
  for (const auto& [name, tensor] : std::get<1>(wanted)) {
    const torch::Tensor& other = std::get<1>(found).at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(other.equal(tensor)) << name;
  }
}

TEST(ObjectFiles, EachRankHasItsOwn) {
  struct Case {
    int pp, tp;
    bool shares_state;
    std::string suffix; // of the last rank
  };
  std::vector<Case> cases = {
      {2, 1, false, "_1"}, {1, 2, false, "_0_1"}, {1, 1, true, "_0_0_1"}, {1, 1, false, "_0"}};
  if (world_size() == 4) {
    cases = {{4, 1, false, "_3"}, {2, 2, false, "_1_1"}, {2, 1, true, "_1_0_1"}};
  }
  for (const Case& layout : cases) {
    const SharedFolder folder;
    create(folder);
    Config config = config_of(layout.pp, 1);
    config.tensor_parallel_degree = layout.tp;
    config.shard_optimizer_state = layout.shares_state;
    config.ddp = world_size() > layout.pp;
    init(config);
    const Ended ended;
    const std::string path = folder / "state";
    if (rank() == size() - 1) {
      EXPECT_EQ(object_file_of_rank(path), path + layout.suffix);
    }
    // Replicas without a file of their own have one together.
    const std::vector<std::string> files = allgather(object_file_of_rank(path));
    const auto first = std::find(files.begin(), files.end(), object_file_of_rank(path));
    const int writer = static_cast<int>(first - files.begin());
    if (writer == rank()) {
      save_object(object_of(rank()), path);
    }
    if (rank() == 0) {
      save_object(object_of(77), folder / "whole", /*partial=*/false);
    }
    barrier();
    expect_object_of(writer, load_object<Kept>(path));
    expect_object_of(77, load_object<Kept>(folder / "whole", /*partial=*/false));
    EXPECT_LT(std::filesystem::file_size(object_file_of_rank(path)), 2000U);
    barrier();
  }
}

TEST(ObjectFiles, WhatIsNoneIsNamed) {
  const SharedFolder folder;
  create(folder);
  init(config_of(1, 1));
  const Ended ended;
  const std::string path = folder / str("of_", rank());
  EXPECT_THAT(error_of<CheckpointError>([&] { load_object<Kept>(path); }), HasSubstr(path + "_0"));
  save_object(object_of(rank()), path, /*partial=*/false);
  EXPECT_THAT(
      error_of<CheckpointError>([&] { load_object<std::string>(path, false); }),
      AllOf(HasSubstr(path), HasSubstr("another type")));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(60);
  file.put('\x55').put('\x2a');
  file.close();
  EXPECT_THAT(
      error_of<CheckpointError>([&] { load_object<Kept>(path, false); }),
      AllOf(HasSubstr(path), HasSubstr("is damaged")));
  std::ofstream(path) << "text";
  EXPECT_THAT(
      error_of<CheckpointError>([&] { load_object<Kept>(path, false); }),
      HasSubstr("is no file of tessera::save_object"));
  EXPECT_THAT(
      error_of<CheckpointError>([&] { save_object(1, path + "/below"); }), HasSubstr("below"));
}

} // namespace
} // namespace tessera::testing
