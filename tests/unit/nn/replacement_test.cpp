// Redirected calls and registrations, without ranks.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/replace/follow_mode.h"
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

Replacements replaced(
    const std::shared_ptr<torch::nn::Module>& root,
    const std::set<std::string>& whole = {},
    const std::set<std::string>& divided = {}) {
  return replace_marked(
      root, whole, [](const torch::nn::Module&, const Make& make) { return make(); }, divided);
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

TEST(Replacement, MarkedModulesStayWholeWhereThatIsSaid) {
  Sequential list;
  {
    const TensorParallelismScope marked;
    list->push_back(Scale(3));
    list->push_back(Scale(5));
  }
  const Replacements some = replaced(list.ptr(), {"1"});
  ASSERT_EQ(some.replaced.size(), 1U);
  EXPECT_EQ(some.replaced[0].path, "0");
  EXPECT_EQ(type_name(*list->children().at(1)), "Scale");
  EXPECT_THAT(text_of(some), Contains(HasSubstr("stays whole")));
  Sequential again;
  {
    const TensorParallelismScope marked;
    again->push_back(Scale(3));
  }
  again->push_back(Scale(5)); // not marked
  for (const char* path : {"1", "2", "layers"}) {
    EXPECT_THAT(
        error_text<ConfigError>([&] { replaced(again.ptr(), {path}); }),
        HasSubstr("no module of this path is marked"));
  }
}

TEST(Replacement, ADegreeThatNothingTakesIsAnError) {
  const auto made = [] {
    Sequential list;
    const TensorParallelismScope marked;
    list->push_back(Scale(3));
    list->push_back(Scale(5));
    return list;
  };
  EXPECT_EQ(replaced(made().ptr(), {"0"}, {"1", "1.part"}).replaced.size(), 1U);
  EXPECT_THAT(
      error_text<ConfigError>([&] { replaced(made().ptr(), {"0"}, {"0.part"}); }),
      HasSubstr("\"0.part\": it lies inside of \"0\", which stays whole"));
  EXPECT_THAT(
      error_text<ConfigError>([&] { replaced(made().ptr(), {}, {"7"}); }),
      HasSubstr("\"7\": no module of this path is divided"));
  EXPECT_THAT(
      error_text<ConfigError>([&] { replaced(made().ptr(), {"1x"}); }),
      HasSubstr("the nearest is \"1\""));
}

TEST(Replacement, APartOfADividedModuleCannotStayWhole) {
  Sequential list;
  {
    const TensorParallelismScope marked;
    list->push_back(Scale(3));
  }
  EXPECT_THAT(
      error_text<ConfigError>([&] { replaced(list.ptr(), {"0.part"}); }),
      HasSubstr("it lies inside of \"0\""));
  const auto whole_model = [] {
    const TensorParallelismScope marked;
    return Scale(3);
  };
  EXPECT_THAT(
      error_text<ConfigError>([&] { replaced(whole_model().ptr(), {"part"}); }),
      HasSubstr("no part of it can stay whole"));
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

/// What the caller passed as `count` is another number after the call.
struct CountingScaleImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, std::int64_t& count) {
    ++count;
    return x;
  }
};
TESSERA_MODULE(CountingScale);

struct DistributedCountingScaleImpl : DistributedModule {
  explicit DistributedCountingScaleImpl(const CountingScaleImpl& /*original*/) {}
  torch::Tensor forward(const torch::Tensor& x, std::int64_t /*count*/) {
    return x;
  }
};
TESSERA_MODULE(DistributedCountingScale);
TESSERA_TP_REGISTER(CountingScale, DistributedCountingScale);

TEST(Replacement, AForwardThatChangesItsArgumentIsRefused) {
  CountingScale plain;
  std::int64_t count = 0;
  CountingScale counting;
  counting(torch::ones({3}), count);
  EXPECT_EQ(count, 1);
  set_tensor_parallelism(*counting);
  const std::string said = error_text<ConfigError>([&] { replaced(counting.ptr()); });
  EXPECT_THAT(said, HasSubstr("the model (CountingScale) cannot be replaced by"));
  EXPECT_THAT(said, HasSubstr("by a reference that is not const"));
  EXPECT_EQ(replaced(plain.ptr()).replaced.size(), 0U); // not marked
}

/// A module with a part that has a mode of its own.
struct PartedImpl : torch::nn::Module {
  PartedImpl() : part(register_module("part", Scale(2))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return part(x);
  }
  Scale part{nullptr};
};
TESSERA_MODULE(Parted);

struct DistributedPartedImpl : DistributedModule {
  explicit DistributedPartedImpl(const PartedImpl& /*original*/) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return is_training() ? x : -x;
  }
};
TESSERA_MODULE(DistributedParted);
TESSERA_TP_REGISTER(Parted, DistributedParted);

struct AboveImpl : torch::nn::Module {
  AboveImpl() : below(register_module("below", Parted())) {}
  Parted below{nullptr};
};

TEST(Replacement, TrainAndEvalReachTheReplacementInTheOrderSaid) {
  const auto net = std::make_shared<AboveImpl>();
  set_tensor_parallelism(*net->below);
  const auto kept = replaced(net);
  ASSERT_EQ(kept.replaced.size(), 1U);
  const auto x = torch::ones({3});
  const auto trains = [&] { return net->below(x).equal(x); };
  EXPECT_TRUE(trains());
  // Each epoch of a script that freezes a part says both.
  for (int epoch = 0; epoch < 2; ++epoch) {
    net->train();
    EXPECT_TRUE(trains());
    net->below->eval();
    EXPECT_FALSE(trains());
  }
  net->train();
  EXPECT_TRUE(trains());
  net->eval();
  EXPECT_FALSE(trains());
  net->below->train();
  EXPECT_TRUE(trains());
  check_mode(*kept.replaced[0].original, "below");
}

TEST(Replacement, APartHasNoModeOfItsOwn) {
  Parted net;
  set_tensor_parallelism(*net);
  const auto kept = replaced(net.ptr());
  const auto check = [&] { check_mode(*kept.replaced[0].original, ""); };
  net->part->eval();
  const std::string said = error_text<UserError>(check);
  EXPECT_THAT(said, HasSubstr("'part' was told eval(), and it is inside the model (Parted)"));
  EXPECT_THAT(said, HasSubstr("is in train() as a whole"));
  net->eval(); // which its part is told as well
  check();
  net->part->train();
  EXPECT_THAT(error_text<UserError>(check), HasSubstr("'part' was told train()"));
  net->train();
  check();
  // Also what was said before the module was replaced.
  Parted frozen;
  frozen->part->eval();
  set_tensor_parallelism(*frozen);
  const auto later = replaced(frozen.ptr());
  EXPECT_THAT(
      error_text<UserError>([&] { check_mode(*later.replaced[0].original, ""); }),
      HasSubstr("'part' was told eval()"));
}

// The children that listen for modes are no part of it.
TEST(Replacement, AFileOfAPlainModuleIsLoadedIntoTheOriginal) {
  std::stringstream file;
  torch::save(Parted(), file);
  Parted net;
  set_tensor_parallelism(*net);
  const auto kept = replaced(net.ptr());
  EXPECT_NO_THROW(torch::load(net, file));
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
