#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/nn/module/containers.h"

namespace tessera {
namespace {

struct SplitImpl : torch::nn::Module {
  std::tuple<torch::Tensor, int> forward(const torch::Tensor& x) {
    return {x + 1, 3};
  }
};
TESSERA_MODULE(Split);

struct JoinImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, int times) {
    return x * times;
  }
};
TESSERA_MODULE(Join);

// Children 1 to 3 "live elsewhere": one call for the run.
class OneRun : public nn::Interceptor {
 public:
  bool wants(const torch::nn::Module&) override {
    return false;
  }
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override {
    ranges.emplace_back(first, last);
    const nn::InterceptorScope plain(nullptr);
    return nn::find_invoker(key.hash)(module, args, first, last);
  }
  int range_end(const torch::nn::Module&, int first) override {
    return first == 1 ? 3 : first + 1;
  }
  std::vector<std::pair<int, int>> ranges;
};

nn::Sequential make() {
  return nn::Sequential(nn::Linear(3, 3), Split(), Join(), nn::ReLU());
}

TEST(Sequential, SpreadsTuplesAndEqualsTheCallsByHand) {
  torch::manual_seed(0);
  nn::Sequential net = make();
  const auto x = torch::randn({2, 3});
  const auto& linear = net->named_children()["0"]->as<torch::nn::Linear>();
  const auto expected = torch::relu((linear->forward(x) + 1) * 3);
  EXPECT_TRUE(torch::equal(net(x), expected));
  EXPECT_EQ(net->size(), 4U);
  EXPECT_EQ(net->parameters().size(), 2U);
}

TEST(Sequential, ARunOfChildrenIsOneCall) {
  nn::Sequential net = make();
  const auto x = torch::randn({2, 3});
  const auto expected = net(x);
  OneRun run;
  const nn::InterceptorScope scope(&run);
  EXPECT_TRUE(torch::equal(net(x), expected));
  EXPECT_EQ(run.ranges, (std::vector<std::pair<int, int>>{{1, 3}}));
}

TEST(Sequential, WrongArityNamesTheChild) {
  nn::Sequential net{nn::ReLU(), Join()};
  try {
    net(torch::ones(2));
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("Join"), std::string::npos);
  }
}

TEST(ModuleList, RegistersChildrenByIndex) {
  nn::ModuleList<nn::Linear> list;
  list->push_back(nn::Linear(2, 2));
  list->push_back(nn::Linear(2, 2));
  torch::Tensor x = torch::ones({1, 2});
  for (auto& layer : *list) {
    x = layer(x);
  }
  EXPECT_EQ(list->named_parameters().keys().back(), "1.bias");
}

} // namespace
} // namespace tessera
