#include "tessera/autograd/dispatch_mode.h"

#include <thread>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autograd/meta_call.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

class Names : public DispatchMode {
 public:
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    names.push_back(operator_name(op));
    call_plain(op, stack);
  }
  std::vector<std::string> names;
};

// Makes every factory call give a meta tensor.
class FactoriesOnMeta : public DispatchMode {
 public:
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    call_on_meta(op, stack);
  }
};

TEST(DispatchMode, SeesFactoriesViewsAndInPlaceOperatorsOnce) {
  Names mode;
  {
    const DispatchScope scope(&mode);
    const torch::Tensor x = torch::empty({2, 3});
    x.normal_();
    const torch::Tensor y = x.t().contiguous();
    torch::linear(y, torch::ones({4, 2}));
  }
  torch::ones(2);
  EXPECT_THAT(
      mode.names,
      ElementsAre(
          "aten::empty.memory_format",
          "aten::normal_",
          "aten::t",
          "aten::contiguous",
          "aten::ones",
          "aten::linear"));
}

TEST(DispatchMode, AutogradRecordsBelowTheMode) {
  Names mode;
  torch::Tensor w = torch::full({3}, 2.0, torch::requires_grad());
  {
    const DispatchScope scope(&mode);
    (w * w).sum().backward();
  }
  EXPECT_TRUE(torch::equal(w.grad(), torch::full({3}, 4.0)));
  EXPECT_THAT(mode.names, Contains("aten::mul.Tensor"));
}

TEST(DispatchMode, FactoryOnMetaKeepsRequiresGradAndIsALeaf) {
  FactoriesOnMeta mode;
  torch::Tensor x;
  {
    const DispatchScope scope(&mode);
    x = torch::randn({1 << 20, 1 << 20}, torch::requires_grad());
    torch::nn::init::kaiming_uniform_(x);
    EXPECT_TRUE(torch::arange(7).is_meta());
  }
  EXPECT_TRUE(x.is_meta());
  EXPECT_TRUE(x.requires_grad());
  EXPECT_TRUE(x.is_leaf());
  EXPECT_FALSE(torch::ones(1).is_meta());
}

TEST(DispatchMode, InnermostScopeIsAskedAndExceptionsCloseScopes) {
  Names outer, inner;
  const DispatchScope scope(&outer);
  {
    const DispatchScope nested(&inner);
    torch::ones(1);
  }
  {
    const DispatchScope nested(nullptr);
    torch::ones(1);
  }
  EXPECT_TRUE(outer.names.empty());
  EXPECT_THAT(inner.names, ElementsAre("aten::ones"));
  EXPECT_ANY_THROW(torch::ones({2, 3}).mm(torch::ones({2, 3})));
  torch::zeros(1);
  EXPECT_THAT(outer.names, ElementsAre("aten::ones", "aten::ones", "aten::mm", "aten::zeros"));
}

TEST(DispatchMode, OtherThreadsAreNotSeen) {
  Names mode;
  const DispatchScope scope(&mode);
  std::thread([] { torch::ones(1); }).join();
  EXPECT_TRUE(mode.names.empty());
}

TEST(MetaCall, MixesTensorsWithDataAndNamesWhatHasNoShape) {
  FactoriesOnMeta mode;
  const torch::Tensor w = torch::empty({4, 3}, torch::kMeta); // made outside the scope
  torch::Tensor statistics = torch::ones(4);
  const DispatchScope scope(&mode);
  const torch::Tensor y = torch::linear(torch::ones({2, 3}), w);
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{2, 4}));
  // Written by the operator, but it has data: left as it is.
  EXPECT_TRUE(statistics.copy_(y[0]).is_same(statistics));
  EXPECT_FALSE(statistics.is_meta());
  try {
    y.sum().item<float>();
    FAIL() << "a number came from nowhere";
  } catch (const ReadsNumbers& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("aten::item"));
  }
}

TEST(MetaCall, OperatorsWithoutMetaKernelGiveTheShapesOfTheCpu) {
  FactoriesOnMeta mode;
  const DispatchScope scope(&mode);
  torch::Tensor huge = torch::empty({1 << 20, 1 << 16}); // 256 GiB
  const torch::Tensor ids = torch::empty({2, 3}, torch::kLong);
  const torch::Tensor x = torch::embedding(huge.slice(1, 0, 8), ids);
  EXPECT_TRUE(x.is_meta());
  EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{2, 3, 8}));
  EXPECT_EQ(torch::layer_norm(x, {8}).sizes(), x.sizes());
  EXPECT_EQ(torch::relu(x).sizes(), x.sizes());
  EXPECT_EQ(torch::where(x > 0, x, x).scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::isnan(x).scalar_type(), torch::kBool);
  EXPECT_TRUE(torch::relu_(huge).is_same(huge));
  const torch::Tensor image = torch::empty({2, 3, 8, 8});
  EXPECT_EQ(
      torch::conv2d(image, torch::empty({5, 3, 3, 3})).sizes(),
      (std::vector<std::int64_t>{2, 5, 6, 6}));
}

TEST(MetaCall, ShapesThatDependOnNumbersAreRefused) {
  FactoriesOnMeta mode;
  const DispatchScope scope(&mode);
  const torch::Tensor ids = torch::empty({3}, torch::kLong);
  EXPECT_THROW(torch::one_hot(ids), ReadsNumbers);
  EXPECT_EQ(torch::one_hot(ids, 5).size(1), 5);
  EXPECT_THROW(torch::nonzero(ids), ReadsNumbers);
  EXPECT_THROW(torch::ones({3}).index({ids > 0}), ReadsNumbers);
  // A mistake of the caller stays what it is.
  EXPECT_THROW(torch::ones({2, 3}).mm(torch::ones({2, 3})), c10::Error);
}

} // namespace
} // namespace tessera
