#pragma once

#include <string_view>

#include <gtest/gtest.h>

namespace tessera::bench {

/// A test of the AMP paper's experiments. Their inputs are no part of the tree, so it is skipped
/// where cmake was not told their folder.
class NeedsAmpRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(AMP_RUNS).empty()) {
      GTEST_SKIP() << "needs the AMP paper's inputs: cmake -DTESSERA_AMP_RUNS=FOLDER";
    }
  }
};

} // namespace tessera::bench
