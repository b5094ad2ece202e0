// What a mesh that is only looked at tells of its products: the planner prices it.
#include <map>
#include <memory>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/autotune/lone_group.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/product.h"

namespace tessera::autotune {
namespace {

TEST(MeshOutline, TellsThePanelsOfAMeshThatIsNoSquare) {
  LoneGroup group(6);
  nn::TensorParallel parallel;
  parallel.group = &group;
  parallel.shapes_only = true;
  parallel.distribution = nn::Distribution::kTwoD;
  parallel.mesh = nn::summa::Mesh::outline(
      group, std::make_unique<LoneGroup>(3), std::make_unique<LoneGroup>(2));
  const nn::TensorParallelScope scope(parallel);
  const nn::summa::Mesh& mesh = *parallel.mesh;
  EXPECT_EQ(mesh.shape_text(), "2 x 3");

  struct Panels {
    int count = 0;
    double bytes = 0;
  };
  std::map<int, Panels> panels; // by ranks
  nn::SkippedWork product;
  const nn::SkippedWorkScope listen([&](const nn::SkippedWork& work) {
    if (work.operation == "panel") {
      ++panels[work.ranks].count;
      panels[work.ranks].bytes += work.bytes;
    } else {
      product = work;
    }
  });
  // A [10, 12] and B [12, 18], whose blocks are [5, 4] and [6, 6].
  const at::Tensor out = torch::ones({5, 6});
  nn::summa::multiply(
      mesh,
      nn::summa::Form::kAB,
      torch::zeros({5, 4}),
      torch::zeros({6, 6}),
      nn::summa::MeshBlocks(mesh, 12),
      out);
  EXPECT_EQ(out.abs().max().item<float>(), 0);
  // Cut at 4, 6 and 8: four panels of three on average.
  EXPECT_EQ(product.count, 4);
  EXPECT_EQ(product.inner, 3);
  EXPECT_EQ(product.rows, 5);
  EXPECT_EQ(product.columns, 6);
  ASSERT_EQ(panels.size(), 2U);
  EXPECT_EQ(panels[3].count, 4); // A, along the row
  EXPECT_EQ(panels[3].bytes, 5 * 12 * 4);
  EXPECT_EQ(panels[2].count, 4); // B, along the column
  EXPECT_EQ(panels[2].bytes, 12 * 6 * 4);
}

} // namespace
} // namespace tessera::autotune
