#include "cli/blas_kernel.h"

#include <string>

#include <dlfcn.h>
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

// As in a process that libtorch brought it into.
TEST(BlasKernel, IsFoundAmongWhatIsLoaded) {
  const std::string alone = picked_blas_kernel();
  if (alone.empty()) {
    GTEST_SKIP() << "no OpenBLAS here";
  }
  ASSERT_NE(dlopen("libblas.so.3", RTLD_LAZY | RTLD_GLOBAL), nullptr) << dlerror();
  ASSERT_NE(dlsym(RTLD_DEFAULT, "openblas_get_corename"), nullptr);
  EXPECT_EQ(picked_blas_kernel(), alone);
}

} // namespace
} // namespace tessera::cli
