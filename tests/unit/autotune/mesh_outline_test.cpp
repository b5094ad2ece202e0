// What a mesh that is only looked at tells of its products and exchanges: the planner prices it.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autotune/lone_group.h"
#include "tessera/nn/layers/linear.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/functional.h"
#include "tessera/nn/summa/product.h"

namespace tessera::autotune {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;
using testing::IsSupersetOf;

// The first of six ranks on a mesh of 2 x 3.
class MeshOutline : public testing::Test {
 protected:
  MeshOutline() {
    parallel_.group = &group_;
    parallel_.shapes_only = true;
    parallel_.distribution = nn::Distribution::kTwoD;
    parallel_.mesh = nn::summa::Mesh::outline(
        group_, std::make_unique<LoneGroup>(3), std::make_unique<LoneGroup>(2));
    scope_ = std::make_unique<nn::TensorParallelScope>(parallel_);
  }

  struct Told {
    std::string operation;
    int ranks = 0;
    double bytes = 0;
    bool has_adjoint = true;
  };

  // Returns the collectives that a tracer hears of.
  static std::vector<Told> told_by(const std::function<void()>& run) {
    std::vector<Told> told;
    const at::NoGradGuard no_grad; // as a tracer has
    const nn::SkippedWorkScope listen([&](const nn::SkippedWork& work) {
      if (work.operation != "product") {
        told.push_back({work.operation, work.ranks, work.bytes, work.has_adjoint});
      }
    });
    run();
    return told;
  }

  LoneGroup group_{6};
  nn::TensorParallel parallel_;
  std::unique_ptr<nn::TensorParallelScope> scope_;
};

TEST_F(MeshOutline, TellsThePanelsOfAMeshThatIsNoSquare) {
  const nn::summa::Mesh& mesh = *parallel_.mesh;
  EXPECT_EQ(mesh.shape_text(), "2 x 3");

  struct Panels {
    int count = 0;
    double bytes = 0;
  };
  std::map<int, Panels> panels; // by ranks
  nn::SkippedWork product;
  const nn::SkippedWorkScope listen([&](const nn::SkippedWork& work) {
    if (work.operation == "panel") {
      panels[work.ranks].count += static_cast<int>(work.count);
      panels[work.ranks].bytes += work.count * work.bytes;
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

TEST_F(MeshOutline, TellsHowRanksAgreeOnWhatTheyBring) {
  const nn::summa::Boundary boundary(parallel_.mesh, /*prescaled=*/false);
  at::Tensor of_row;
  const auto told = told_by([&] {
    of_row = boundary.samples_of_row(torch::zeros({4, 5}, at::kLong));
  });
  EXPECT_EQ(of_row.sizes(), at::IntArrayRef({12, 5}));
  // Two numbers of each rank along the row, those of the row along the column; then the samples.
  EXPECT_THAT(
      told,
      ElementsAre(
          FieldsAre("all_gather", 3, 16, false),
          FieldsAre("all_gather", 2, 3 * 16, false),
          FieldsAre("all_gather", 3, 4 * 5 * 8, true)));
}

TEST_F(MeshOutline, TellsWhatTheFirstRowSaysOfItsVectors) {
  nn::DistributedLinear linear(12, 18);
  const auto told = told_by([&] { linear->forward(torch::zeros({4, 12})); });
  // Whether the bias is trained, and the bias itself.
  EXPECT_THAT(
      told,
      IsSupersetOf({FieldsAre("broadcast", 2, 8, false), FieldsAre("broadcast", 2, 6 * 4, true)}));
}

TEST_F(MeshOutline, TellsThePanelsOfATable) {
  at::Tensor out;
  const auto told = told_by([&] {
    out = nn::summa::embedding(
        parallel_.mesh,
        torch::zeros({5, 4}),
        torch::full({2, 3}, 9, at::kLong),
        nn::summa::MeshBlocks(*parallel_.mesh, 10),
        /*padding_row=*/-1);
  });
  EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_THAT(
      told,
      ElementsAre(
          FieldsAre("broadcast", 2, 5 * 4 * 4, true), FieldsAre("broadcast", 2, 5 * 4 * 4, true)));
}

} // namespace
} // namespace tessera::autotune
