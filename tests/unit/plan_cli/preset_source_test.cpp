// What is traced of a preset is what the program trains.
#include "cli/train/preset_source.h"

#include <gtest/gtest.h>

#include "tessera/autotune/trace_model.h"

namespace tessera::cli {
namespace {

// On a mesh a GPT computes its loss on the logits that each rank has; libtorch's loss, which needs
// them whole, is none of its operators.
TEST(PresetSource, LogitsStayDividedOnAMesh) {
  autotune::TraceRequest request;
  request.global_batch_size = 8;
  request.tensor_degrees = {4};
  const models::Preset preset = models::find_preset("gpt-tiny");
  const planner::ModelTrace trace = autotune::trace_model(preset_source(preset, 16), request);
  int meshes = 0;
  for (const planner::DivisionTrace& division : trace.divisions) {
    if (division.way.distribution != cost::Distribution::kMesh) {
      continue;
    }
    ++meshes;
    for (const graph::OperatorWork& work : division.least) {
      EXPECT_EQ(work.name.find("cross_entropy_loss"), std::string::npos)
          << (division.way.same_samples ? "the same samples" : "own samples");
    }
  }
  EXPECT_EQ(meshes, 2); // own samples, and the same ones
}

} // namespace
} // namespace tessera::cli
