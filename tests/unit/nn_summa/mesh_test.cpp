// The cases on threads of this process, on meshes of 1 x 1, 1 x 2, 2 x 2,
// 2 x 3, 2 x 4, 3 x 3 and 4 x 4, with panels in shared memory and with panels through broadcasts.
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/summa/add_up.h"

#include "cases.h"
#include "mesh_ranks.h"

namespace tessera::nn::summa {
namespace {

using Parameters = std::tuple<int, bool, cases::Case>;

class OnMesh : public ::testing::TestWithParam<Parameters> {};

TEST_P(OnMesh, Holds) {
  const auto [ranks, shared, test] = GetParam();
  MeshOptions options;
  options.shared_memory = shared;
  EXPECT_EQ(run_on_mesh(ranks, options, test.run), "");
}

std::string name_of_test(const ::testing::TestParamInfo<Parameters>& info) {
  return std::string(std::get<2>(info.param).name) + "_" + std::to_string(std::get<0>(info.param)) +
         (std::get<1>(info.param) ? "_shared" : "_broadcast");
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    OnMesh,
    ::testing::Combine(
        ::testing::Values(1, 2, 4, 6, 8, 9),
        ::testing::Bool(),
        ::testing::ValuesIn(cases::all_cases())),
    name_of_test);

// 4 x 4, for values; managed memory takes 16 threads long and asks for no other numbers.
INSTANTIATE_TEST_SUITE_P(
    CasesOfValues,
    OnMesh,
    ::testing::Combine(
        ::testing::Values(16),
        ::testing::Bool(),
        ::testing::ValuesIn(cases::cases_of_values())),
    name_of_test);

// (1e8 + 1) - 1e8 is 0 in f32, (1e8 - 1e8) + 1 is 1.
TEST(AddUp, KeepsTheOrderOfItsPartsInAnyLayout) {
  const auto filled = [](float value) { return at::full({3, 2}, value); };
  for (const bool transposed : {false, true}) {
    for (const std::size_t target : {0, 1, 2}) {
      std::vector<at::Tensor> parts = {filled(1e8F), filled(1), filled(-1e8F)};
      for (at::Tensor& part : parts) {
        part = transposed ? part.t() : part;
      }
      add_up(parts, parts[target]);
      EXPECT_EQ(parts[target].abs().max().item<float>(), 0) << transposed << target;
    }
  }
}

TEST(Blocks, DividesUnitsAndSaysWhatWorks) {
  const Blocks heads(7 * 8, 3, 8);
  EXPECT_EQ(heads.size(0), 24);
  EXPECT_EQ(heads.size(2), 16);
  EXPECT_EQ(heads.start(2), 40);
  try {
    Blocks(10, 3, 4);
    FAIL();
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("multiple of 4"), std::string::npos) << text;
    EXPECT_NE(text.find("at least 12"), std::string::npos) << text;
  }
  EXPECT_THROW(Blocks(10, 2, 0), ShapeError); // no division by zero
}

} // namespace
} // namespace tessera::nn::summa
