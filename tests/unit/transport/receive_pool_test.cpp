#include "tessera/transport/receive_pool.h"

#include <memory>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::transport {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

at::Tensor take(ReceivePool& pool, std::int64_t bytes) {
  return pool.make({bytes}, at::kByte, static_cast<std::size_t>(bytes));
}

TEST(ReceivePool, LargePiecesComeBackAndAreGivenOutAgain) {
  const auto pool = std::make_shared<ReceivePool>(10 * kMiB);
  void* first = nullptr;
  {
    const auto tensor = take(*pool, 4 * kMiB);
    first = tensor.data_ptr();
    EXPECT_EQ(pool->kept(), 0U);
  }
  EXPECT_EQ(pool->kept(), 4U * kMiB);
  const auto much_smaller = take(*pool, kMiB);
  EXPECT_NE(much_smaller.data_ptr(), first);
  const auto again = take(*pool, 4 * kMiB - 5);
  EXPECT_EQ(again.data_ptr(), first);
  EXPECT_EQ(pool->kept(), 0U);
}

TEST(ReceivePool, NoMoreIsKeptThanAllowedAndSmallOnesNever) {
  const auto pool = std::make_shared<ReceivePool>(5 * kMiB);
  {
    const auto a = take(*pool, 3 * kMiB);
    const auto b = take(*pool, 3 * kMiB);
    const auto c = take(*pool, 1000);
  }
  EXPECT_EQ(pool->kept(), 3U * kMiB);
}

TEST(ReceivePool, TensorsOutliveTheirMaker) {
  auto pool = std::make_shared<ReceivePool>(5 * kMiB);
  at::Tensor held = take(*pool, 2 * kMiB);
  pool.reset();
  held.fill_(3);
  EXPECT_EQ(held[kMiB].item<int>(), 3);
}

} // namespace
} // namespace tessera::transport
