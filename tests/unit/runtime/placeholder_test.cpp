#include "tessera/runtime/replay/placeholder.h"

#include <memory>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::runtime::testing {
namespace {

// Autograd adds gradients in place where it sees one holder of the memory, and
// of a placeholder it does not see views of the real tensor.
TEST(Placeholder, AGradientThatIsAddedToLeavesItsViewsAlone) {
  const torch::NoGradGuard no_grad;
  auto reads = std::make_shared<ReadSlots>();
  const auto stands_for = [&](const at::Tensor& real) {
    return verifying_placeholder(real, {Slot()}, reads, /*gradient=*/true);
  };
  const at::Tensor gradient = stands_for(torch::ones({2, 3}));
  const at::Tensor view = gradient.view({6}); // as a product that was put off
  gradient.add_(torch::full({2, 3}, 2.0));
  EXPECT_TRUE(torch::equal(view, torch::ones({6})));
  const at::Tensor sum = read_tensor(gradient, "the test");
  EXPECT_TRUE(torch::equal(sum, torch::full({2, 3}, 3.0)));
  EXPECT_EQ(gradient.data_ptr(), sum.data_ptr());
  EXPECT_TRUE(placeholder_of(gradient)->origins.empty()); // this rank's own now

  // Nobody looks: in place.
  const at::Tensor alone = stands_for(torch::ones({2, 3}));
  const void* place = alone.data_ptr();
  alone.add_(torch::full({2, 3}, 2.0));
  EXPECT_EQ(alone.data_ptr(), place);
  EXPECT_TRUE(torch::equal(read_tensor(alone, "the test"), torch::full({2, 3}, 3.0)));
}

} // namespace
} // namespace tessera::runtime::testing
