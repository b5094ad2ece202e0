#include "tessera/tensor/dtype.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Dtype, TypesHaveTheNamesOfFiles) {
  EXPECT_EQ(dtype_name(at::kFloat), "float32");
  EXPECT_EQ(dtype_name(at::kBFloat16), "bfloat16");
  EXPECT_EQ(dtype_name(at::kBool), "bool");
}

TEST(Dtype, BytesCountElementsOfMetaTensorsToo) {
  EXPECT_EQ(bytes_of(torch::empty({3, 5}, torch::kHalf)), 30);
  EXPECT_EQ(bytes_of(torch::empty({1 << 20, 1 << 20}, torch::kMeta)), std::int64_t{4} << 40);
  EXPECT_EQ(bytes_of(torch::Tensor()), 0);
}

} // namespace
} // namespace tessera
