#include "cli/train/tensor_memory.h"

#include <thread>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/tensor/mapped_bytes.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMib = 1 << 20;
constexpr std::int64_t kSlack = kMib / 8; // what a heap adds to a block, and small tensors

TEST(TensorMemory, PeaksAreOfTheTimeSinceTheLastQuestion) {
  count_tensor_bytes();
  take_tensor_peak(); // what other tests had
  const auto before = take_tensor_peak();
  ASSERT_TRUE(before.has_value());
  const at::Tensor kept = at::zeros({kMib}); // 4 MiB
  { const at::Tensor freed = at::zeros({2 * kMib}); }
  EXPECT_NEAR(
      static_cast<double>(*take_tensor_peak()), static_cast<double>(*before + 12 * kMib), kSlack);
  EXPECT_NEAR(
      static_cast<double>(*take_tensor_peak()), static_cast<double>(*before + 4 * kMib), kSlack);
}

TEST(TensorMemory, CountsAllThreadsAndWhatOthersFree) {
  count_tensor_bytes();
  take_tensor_peak();
  const auto before = take_tensor_peak();
  ASSERT_TRUE(before.has_value());
  at::Tensor made;
  std::thread([&made] { made = at::zeros({kMib}); }).join();
  made = at::Tensor();
  EXPECT_NEAR(
      static_cast<double>(*take_tensor_peak()), static_cast<double>(*before + 4 * kMib), kSlack);
  EXPECT_NEAR(static_cast<double>(*take_tensor_peak()), static_cast<double>(*before), kSlack);
}

TEST(TensorMemory, CountsWhatTheLibraryMaps) {
  count_tensor_bytes();
  take_tensor_peak();
  const auto before = take_tensor_peak();
  ASSERT_TRUE(before.has_value());
  const auto bytes_after = [&] { return static_cast<double>(*take_tensor_peak() - *before); };
  {
    MappedBytes block(4 * kMib);
    block.resize(6 * kMib);
    EXPECT_NEAR(bytes_after(), 6.0 * kMib, kSlack); // not 4 and 6 together
    block.resize(kMib);
    EXPECT_NEAR(bytes_after(), 6.0 * kMib, kSlack);
    EXPECT_NEAR(bytes_after(), 1.0 * kMib, kSlack);
  }
  take_tensor_peak();
  EXPECT_NEAR(bytes_after(), 0.0, kSlack);
}

TEST(TensorMemory, TensorsFromBeforeAreFreedAsTheyWereMade) {
  const at::Tensor early = at::zeros({kMib}); // counted or not, by the order of the tests
  count_tensor_bytes();
  count_tensor_bytes(); // the second call changes nothing
  const at::Tensor copy = early.clone();
  EXPECT_TRUE(at::equal(early, copy));
}

} // namespace
} // namespace tessera::cli
