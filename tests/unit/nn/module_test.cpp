#include "tessera/nn/module/module.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/marks.h"

namespace tessera {
namespace {

struct AffineImpl : torch::nn::Module {
  explicit AffineImpl(double scale = 2) : scale(scale) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x * scale;
  }
  std::tuple<torch::Tensor, int>
  forward(torch::Tensor& x, std::optional<torch::Tensor> y, std::vector<int> counts = {3}) {
    return {y ? x + *y : x, counts.at(0)};
  }
  double scale;
};
TESSERA_MODULE(Affine);

// Sends every call through pack, invoker and unpack, as a remote call does.
class Everything : public nn::Interceptor {
 public:
  bool wants(const torch::nn::Module&) override {
    return true;
  }
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override {
    ++calls;
    return nn::find_invoker(key.hash)(module, args, first, last);
  }
  int calls = 0;
};

c10::IValue first_net(torch::nn::Module&, const c10::IValue&, int, int) {
  return 1;
}
c10::IValue second_net(torch::nn::Module&, const c10::IValue&, int, int) {
  return 2;
}

TEST(Calls, OfTwoClassesWithOneNameAreRefusedWhenAskedFor) {
  const nn::CallKey key = nn::register_invoker("twice named", &first_net);
  EXPECT_EQ(nn::find_invoker(key.hash), &first_net);
  nn::register_invoker("twice named", &first_net);
  EXPECT_EQ(nn::find_invoker(key.hash), &first_net);
  nn::register_invoker("twice named", &second_net);
  try {
    nn::find_invoker(key.hash);
    ADD_FAILURE() << "found one of two";
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what()).find("twice named"), std::string::npos);
  }
}

TEST(Module, PlainCallWithoutInterceptor) {
  Affine affine(3.0);
  EXPECT_TRUE(torch::equal(affine(torch::ones(2)), torch::full(2, 3.0)));
  EXPECT_TRUE(nn::is_interceptable(*affine));
  EXPECT_EQ(nn::type_name(*affine), "Affine");
}

TEST(Module, InterceptedCallsEqualPlainOnesForEveryOverload) {
  Affine affine;
  Everything everything;
  const nn::InterceptorScope scope(&everything);
  EXPECT_TRUE(torch::equal(affine(torch::ones(2)), torch::full(2, 2.0)));
  torch::Tensor x = torch::ones(2);
  const auto [sum, count] = affine(x, std::optional<torch::Tensor>(x), std::vector<int>{7});
  EXPECT_TRUE(torch::equal(sum, torch::full(2, 2.0)));
  EXPECT_EQ(count, 7);
  const auto [same, three] = affine(x, std::optional<torch::Tensor>());
  EXPECT_TRUE(torch::equal(same, x));
  EXPECT_EQ(three, 3);
  EXPECT_EQ(everything.calls, 3);
}

TEST(Module, InnermostPartitionScopeWins) {
  const tessera::partition outer(1);
  Affine a;
  {
    const tessera::partition inner(3);
    Affine b;
    EXPECT_EQ(nn::manual_partition(*b), 3);
  }
  EXPECT_EQ(nn::manual_partition(*a), 1);
  EXPECT_THROW(tessera::partition(-1), ConfigError);
}

TEST(Value, NestedStructuresRoundTrip) {
  using T = std::
      map<std::string, std::vector<std::tuple<torch::Tensor, std::optional<int>, std::string>>>;
  const T value{{"a", {{torch::ones(2), 4, "x"}, {torch::Tensor(), {}, "y"}}}, {"b", {}}};
  const T back = unpack<T>(pack(value));
  EXPECT_TRUE(torch::equal(std::get<0>(back.at("a")[0]), torch::ones(2)));
  EXPECT_EQ(std::get<1>(back.at("a")[0]), 4);
  EXPECT_FALSE(std::get<0>(back.at("a")[1]).defined());
  EXPECT_FALSE(std::get<1>(back.at("a")[1]).has_value());
  EXPECT_EQ(std::get<2>(back.at("a")[1]), "y");
  EXPECT_TRUE(back.at("b").empty());
}

} // namespace
} // namespace tessera
