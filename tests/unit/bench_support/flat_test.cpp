#include "bench/support/flat.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(Flat, PartsAreAlignedAndComeBack) {
  const std::vector<at::Tensor> tensors{
      torch::arange(5).to(torch::kFloat).view({5, 1}),
      torch::arange(12).to(torch::kFloat).view({3, 4}).t(),
      torch::full({}, 7.0)};
  const FlatLayout layout = flat_layout(tensors, 32);
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{0, 8, 24}));
  EXPECT_EQ(layout.elements, 32);
  const at::Tensor buffer = flatten(tensors, layout);
  EXPECT_EQ(buffer.sum().item<float>(), 10 + 66 + 7) << "padding is zero";
  const auto views = views_of(buffer, tensors, layout);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(views[i], tensors[i]));
  }
  buffer.mul_(2);
  std::vector<at::Tensor> back{torch::empty({5, 1}), torch::empty({3, 4}).t(), torch::empty({})};
  unflatten_into(buffer, back, layout);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(back[i], tensors[i] * 2));
  }
}

TEST(Flat, RefusesMixedTypesAndWrongBuffers) {
  EXPECT_THROW(flat_layout({torch::ones(2), torch::ones(2, torch::kDouble)}), ShapeError);
  EXPECT_THROW(flat_layout({torch::ones(2)}, 6), ShapeError);
  const std::vector<at::Tensor> one{torch::ones(2)};
  const FlatLayout layout = flat_layout(one);
  EXPECT_THROW(views_of(torch::ones(1), one, layout), ShapeError);
  EXPECT_THROW(flatten({}, FlatLayout()), ShapeError);
}

} // namespace
} // namespace tessera
