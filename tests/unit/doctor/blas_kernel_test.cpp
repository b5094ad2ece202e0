#include "cli/blas_kernel.h"

#include <gtest/gtest.h>

namespace tessera::cli {
namespace {

const std::set<std::string> kAvx2 = {"sse2", "avx", "avx2", "fma"};
const std::set<std::string> kAvx512 =
    {"avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"};

TEST(BlasKernel, AWiderOneReplacesANarrowPick) {
  EXPECT_EQ(better_blas_kernel("Prescott", kAvx512), "SkylakeX");
  EXPECT_EQ(better_blas_kernel("Haswell", kAvx512), "SkylakeX");
  EXPECT_EQ(better_blas_kernel("Zen", kAvx512), "SkylakeX");
  EXPECT_EQ(better_blas_kernel("Nehalem", kAvx2), "Haswell");
  EXPECT_EQ(better_blas_kernel("core2", {"avx"}), "Sandybridge");
}

TEST(BlasKernel, ARightPickStays) {
  EXPECT_EQ(better_blas_kernel("SkylakeX", kAvx512), std::nullopt);
  EXPECT_EQ(better_blas_kernel("Cooperlake", kAvx512), std::nullopt);
  EXPECT_EQ(better_blas_kernel("Haswell", kAvx2), std::nullopt);
  EXPECT_EQ(better_blas_kernel("Prescott", {"sse2"}), std::nullopt);
}

TEST(BlasKernel, WhatIsUnknownIsLeftAlone) {
  EXPECT_EQ(better_blas_kernel("", kAvx512), std::nullopt);
  EXPECT_EQ(better_blas_kernel("Katana", kAvx512), std::nullopt);
  EXPECT_EQ(better_blas_kernel("Prescott", {}), std::nullopt);
  // Some of the 512-bit instructions are not enough.
  EXPECT_EQ(better_blas_kernel("Haswell", {"avx", "avx2", "fma", "avx512f"}), std::nullopt);
}

} // namespace
} // namespace tessera::cli
