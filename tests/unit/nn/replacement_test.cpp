// Redirected calls and registrations, without ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/replace/replace.h"

namespace tessera::nn {
namespace {

using ::testing::HasSubstr;

/// x * factor + shift, with arguments that may be left out.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(double factor) : factor(factor) {
    weight = register_parameter("weight", torch::full({3}, factor));
  }
  torch::Tensor
  forward(const torch::Tensor& x, const torch::Tensor& shift = {}, std::int64_t times = 1) {
    const auto y = x * weight * times;
    return shift.defined() ? y + shift : y;
  }
  double factor;
  torch::Tensor weight;
};
TESSERA_MODULE(Scale);

struct DistributedScaleImpl : DistributedModule {
  DistributedScaleImpl(double factor, bool doubled) : doubled(doubled) {
    weight = register_parameter("weight", torch::full({3}, factor));
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& shift, std::int64_t times) {
    const auto y = x * weight * times * (doubled ? 2 : 1);
    return shift.defined() ? y + shift : y;
  }
  bool doubled;
  torch::Tensor weight;
};
TESSERA_MODULE(DistributedScale);

TESSERA_TP_REGISTER(Scale, DistributedScale)
    .init([](const ScaleImpl& scale, const GivenOptions& given) {
      return std::make_tuple(scale.factor, given.get("doubled", false));
    });

Replacements replaced(const std::shared_ptr<torch::nn::Module>& root) {
  return replace_marked(root, [](const torch::nn::Module&, const Make& make) { return make(); });
}

template <typename Error, typename Run>
std::string error_text(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Replacement, CallsGoToTheStandIn) {
  Sequential list;
  {
    const TensorParallelismScope marked(true, {{"doubled", true}});
    list->push_back(Scale(3));
  }
  list->push_back(Scale(5)); // not marked
  Scale held(3);
  set_tensor_parallelism(*held, true, {{"doubled", true}});
  const auto in_list = replaced(list.ptr());
  ASSERT_EQ(in_list.replaced.size(), 1U);
  EXPECT_EQ(in_list.replaced[0].path, "0");
  const auto alone = replaced(held.ptr());
  EXPECT_EQ(type_name(*alone.root), "DistributedScale");
  const auto x = torch::ones({3});
  const torch::Tensor none;
  EXPECT_TRUE(held(x, none, 1).equal(x * 6));
  EXPECT_TRUE(held(x, x, 2).equal(x * 13));
}

TEST(Replacement, ArgumentsLeftOut) {
  Scale net(3);
  set_tensor_parallelism(*net);
  const auto kept = replaced(net.ptr());
  EXPECT_THAT(
      error_text<ShapeError>([&] { net(torch::ones({3})); }),
      HasSubstr("Scale was called with 1 arguments, its distributed "
                "implementation takes 3"));
}

TEST(Replacement, ACallAfterTheEnd) {
  Scale net(3);
  set_tensor_parallelism(*net);
  replaced(net.ptr()); // nobody holds the replacement
  EXPECT_THAT(
      error_text<UserError>([&] { net(torch::ones({3})); }),
      HasSubstr("whose DistributedModel is gone"));
}

TEST(Replacement, OptionsOfAnotherType) {
  Scale net(3);
  set_tensor_parallelism(*net, true, {{"doubled", "yes"}});
  EXPECT_THAT(
      error_text<ConfigError>([&] { replaced(net.ptr()); }),
      HasSubstr("option \"doubled\" has a value of the type String"));
}

TEST(Replacement, ScopesNest) {
  const auto marked = [](const auto& holder) { return is_marked_tensor_parallel(*holder); };
  const TensorParallelismScope outer;
  const Scale one(1);
  {
    const TensorParallelismScope inner(false);
    EXPECT_FALSE(marked(Scale(2)));
  }
  EXPECT_TRUE(marked(one));
  EXPECT_TRUE(marked(Scale(3)));
}

TEST(Replacement, PartsOfDistributedModulesStayTogether) {
  struct HolderImpl : DistributedModule {
    HolderImpl() {
      part = register_module("part", Scale(1));
      list = register_module("list", Sequential(Scale(2)));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return x;
    }
    Scale part{nullptr};
    Sequential list{nullptr};
  };
  const Module<HolderImpl> net;
  EXPECT_TRUE(is_interceptable(*net->part));
  keep_parts_together(*net);
  EXPECT_FALSE(is_interceptable(*net->part));
  EXPECT_TRUE(is_interceptable(*net->list));
  EXPECT_TRUE(is_interceptable(*net->list->children()[0]));
}

} // namespace
} // namespace tessera::nn
