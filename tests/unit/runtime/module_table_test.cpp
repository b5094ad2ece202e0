#include <gmock/gmock.h>

#include "tessera/nn/module/remote_tensor.h"

#include "tests/unit/runtime/pipeline.h"

namespace tessera::runtime::testing {
namespace {

using ::testing::HasSubstr;

/// A module without a holder, which cannot live on a rank of its own.
struct Part : torch::nn::Module {
  Part() {
    weight = register_parameter("weight", torch::ones({kWidth}));
  }
  torch::Tensor weight;
};

/// A module that two parents hold, each under its own name.
struct SharingImpl : torch::nn::Module {
  explicit SharingImpl(bool interceptable) {
    if (interceptable) {
      first = register_module("first", nn::Linear(kWidth, kWidth).ptr());
    } else {
      first = register_module("first", std::make_shared<Part>());
    }
    holder = register_module("holder", Inner());
    holder->register_module("again", first);
  }
  std::shared_ptr<torch::nn::Module> first;
  Inner holder{nullptr};
};
TESSERA_MODULE(Sharing);

TEST(ModuleTable, TensorsGoByTheirFirstNameAndAreKnownByAll) {
  Sharing net(true);
  const ModuleTable table(
      net.ptr(), {{"", 0}, {"first", 1}, {"holder", 0}, {"holder.layer", 0}}, 1);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : table.local_parameters()) {
    names.push_back(name);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("first.weight", "first.bias"));
  EXPECT_TRUE(table.has_tensor("holder.again.weight"));
  EXPECT_EQ(table.owner_of_tensor("holder.again.weight"), 1);
  EXPECT_FALSE(table.has_tensor("holder.weight"));
}

// A module that is only part of its parents cannot serve two ranks.
TEST(ModuleTable, ASharedPartOfTwoRanksIsAnError) {
  Sharing net(false);
  try {
    const ModuleTable table(net.ptr(), {{"", 0}, {"holder", 1}, {"holder.layer", 1}}, 0);
    FAIL() << "no error";
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'first.weight'"));
    EXPECT_THAT(error.what(), HasSubstr("'holder.again.weight'"));
  }
}

TEST(ModuleTable, AMissingPathIsAnError) {
  Net net = make_net();
  try {
    const ModuleTable table(net.ptr(), {{"", 0}, {"near", 0}}, 0);
    FAIL() << "no error";
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'near.layer'"));
  }
}

TEST(ModuleTable, DroppedTensorsStayAsEmptyHandles) {
  Net net = make_net();
  ModuleTable table(net.ptr(), partition_of(2), 0);
  table.drop_remote_tensors({0, 5});
  EXPECT_EQ(net->near->layer->weight.numel(), kWidth * kWidth);
  EXPECT_EQ(nn::remote_tensor(net->outer->inner->layer->weight)->rank, 5);
  EXPECT_EQ(nn::remote_tensor(net->near->layer->weight), nullptr);
  EXPECT_TRUE(net->outer->inner->layer->weight.requires_grad());
}

} // namespace
} // namespace tessera::runtime::testing
