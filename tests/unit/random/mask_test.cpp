// A part of a mask is that part of the whole's, whatever the part.
#include "tessera/random/mask.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/random/philox.h"

namespace tessera::random {
namespace {

constexpr double kProbability = 0.3;
const Use kUse{5, 2, 9};

at::Tensor
mask_of(std::vector<std::int64_t> sizes, const Place& place, at::ScalarType type = at::kFloat) {
  return dropout_mask(sizes, at::dtype(type), kProbability, kUse, place);
}

TEST(DropoutMask, AnElementIsAWordOfPhilox) {
  const at::Tensor mask = mask_of({3, 7}, {});
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    const Words words =
        philox({static_cast<std::uint32_t>(i / 4), 0, kUse.number, kUse.step}, kUse.seed);
    const bool stays = words[static_cast<std::size_t>(i % 4)] >= 1288490189U; // 0.3 * 2^32
    EXPECT_EQ(mask.view({-1})[i].item<float>(), stays ? static_cast<float>(1 / 0.7) : 0.0F) << i;
  }
}

TEST(DropoutMask, PartsArePartsOfTheWhole) {
  const std::int64_t rows = 6;
  const std::int64_t heads = 5;
  const std::int64_t places = 7;
  const std::int64_t keys = 11;
  const at::Tensor whole = mask_of({rows, heads, places, keys}, {});
  EXPECT_TRUE(mask_of({2, heads, places, keys}, {{}, 3, {}}).equal(whole.narrow(0, 3, 2)));
  EXPECT_TRUE(mask_of({3, heads, places, keys}, {{4, 0, 5}, 0, {}})
                  .equal(whole.index_select(0, torch::tensor({4, 0, 5}))));
  EXPECT_TRUE(mask_of({rows, 2, places, keys}, {{}, 0, {{3, heads}}}).equal(whole.narrow(1, 3, 2)));
  EXPECT_TRUE(mask_of({2, heads, places, 4}, {{}, 1, {{}, {}, {6, keys}}})
                  .equal(whole.narrow(0, 1, 2).narrow(3, 6, 4)));
  EXPECT_TRUE(mask_of({2, 3, 4, 5}, {{5, 1}, 0, {{1, heads}, {2, places}, {3, keys}}})
                  .equal(whole.index_select(0, torch::tensor({5, 1}))
                             .narrow(1, 1, 3)
                             .narrow(2, 2, 4)
                             .narrow(3, 3, 5)));
}

// More than a core's task, and no multiple of what is computed side by side.
TEST(DropoutMask, LargeOnesAreTheSameAndDropWhatTheyShould) {
  const std::int64_t rows = 37;
  const at::Tensor whole = mask_of({rows, 3001}, {});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(mask_of({rows, 3001}, {}).equal(whole));
  at::set_num_threads(before);
  for (std::int64_t i = 0; i < rows; ++i) {
    ASSERT_TRUE(mask_of({1, 3001}, {{}, i, {}}).equal(whole.narrow(0, i, 1))) << i;
  }
  EXPECT_NEAR(whole.eq(0).to(at::kDouble).mean().item<double>(), kProbability, 0.01);
  EXPECT_NEAR(whole.mean().item<double>(), 1, 0.01);
}

TEST(DropoutMask, EveryTypeDropsTheSame) {
  const at::Tensor dropped = mask_of({4, 9}, {}).eq(0);
  for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor mask = mask_of({4, 9}, {}, type);
    EXPECT_EQ(mask.scalar_type(), type);
    EXPECT_TRUE(mask.eq(0).equal(dropped));
  }
}

TEST(DropoutMask, UsesStepsAndSeedsDropUnlike) {
  const at::Tensor first = mask_of({8, 8}, {});
  for (const Use& use : {Use{6, 2, 9}, Use{5, 3, 9}, Use{5, 2, 10}, Use{5ULL << 32U, 2, 9}}) {
    EXPECT_FALSE(dropout_mask({8, 8}, at::kFloat, kProbability, use, {}).equal(first));
  }
}

TEST(DropoutMask, Edges) {
  EXPECT_TRUE(dropout_mask({5}, at::kFloat, 1, kUse, {}).eq(0).all().item<bool>());
  EXPECT_TRUE(dropout_mask({5}, at::kFloat, 0, kUse, {}).eq(1).all().item<bool>());
  EXPECT_EQ(mask_of({0, 3}, {}).numel(), 0);
  EXPECT_EQ(mask_of({3, 0}, {}).numel(), 0);
}

TEST(OwnPlace, CountsMicrobatchesOfReplicas) {
  Layout layout;
  layout.data_rank = 2;
  layout.microbatches = 4;
  Stream stream{std::make_shared<Layout>(layout), 0, 3, 5, 0};
  EXPECT_EQ(own_place(stream, 5, "dropout").first_row, (2 * 4 + 3) * 5);
  EXPECT_EQ(own_place(stream, 15, "dropout").first_row, (2 * 4 + 3) * 15); // three rows each
  try {
    own_place(stream, 7, "dropout");
    FAIL() << "7 rows of 5 samples";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("layout_independent"), std::string::npos);
  }
}

} // namespace
} // namespace tessera::random
