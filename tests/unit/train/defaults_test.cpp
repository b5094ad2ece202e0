// What a script has not said is what the published interface says of its own defaults.
#include <gtest/gtest.h>

#include "tessera/model/options.h"
#include "tessera/train/step.h"

namespace tessera {
namespace {

TEST(Defaults, OfAModel) {
  const ModelOptions options;
  EXPECT_TRUE(options.overlapping_allreduce);
  EXPECT_EQ(options.backward_passes_per_step, 1);
  EXPECT_TRUE(options.average_grads_across_microbatches);
  EXPECT_EQ(options.bucket_cap_mb, 25);
  EXPECT_TRUE(options.broadcast_buffers);
}

TEST(Defaults, OfAStep) {
  const StepOptions options;
  EXPECT_TRUE(options.non_split_inputs.empty());
  EXPECT_TRUE(options.input_split_axes.empty());
  EXPECT_TRUE(options.detach_outputs);
}

} // namespace
} // namespace tessera
