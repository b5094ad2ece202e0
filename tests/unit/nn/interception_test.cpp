// Every way in which a libtorch script calls a module arrives at the interceptor of the thread.
#include <sstream>

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

struct TwiceImpl : torch::nn::Module {
  explicit TwiceImpl(double factor = 2) : factor(factor) {
    weight = register_parameter("weight", torch::full({1}, factor));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x * weight;
  }
  double factor;
  torch::Tensor weight;
};
TESSERA_MODULE(Twice);

struct WithDefaultImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, torch::Tensor mask = {}, double scale = 3) {
    return (mask.defined() ? x * mask : x) * scale;
  }
};
TESSERA_MODULE(WithDefault);

struct ConstImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) const {
    return x + 1;
  }
};
TESSERA_MODULE(Const);

struct BaseBlock : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};
struct AddImpl : BaseBlock {
  torch::Tensor forward(torch::Tensor x) override {
    return x + 5;
  }
};
TESSERA_MODULE(Add);

struct NamedModeImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return x;
  }
  torch::Tensor forward(torch::Tensor x, const std::string& mode) {
    return mode == "twice" ? x * 2 : x;
  }
};
TESSERA_MODULE(NamedMode);

struct AnyTypeImpl : torch::nn::Module {
  template <typename T>
  torch::Tensor forward(const T& x) {
    return x.clone();
  }
};
TESSERA_MODULE(AnyType);

struct LastImpl final : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return x - 1;
  }
};
TESSERA_MODULE(Last);

struct CloneableImpl : torch::nn::Cloneable<CloneableImpl> {
  CloneableImpl() {
    reset();
  }
  void reset() override {
    inner = register_module("inner", Twice(4.0));
  }
  torch::Tensor forward(torch::Tensor x) {
    return inner->forward(x);
  }
  Twice inner{nullptr};
};
TESSERA_MODULE(Cloneable);

struct EncoderBlockImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor& x, std::vector<torch::Tensor>& skips, int& depth) {
    skips.push_back(x);
    x = x * 2;
    ++depth;
    return x + 1;
  }
};
TESSERA_MODULE(EncoderBlock);

struct ListKeeperImpl : torch::nn::Module {
  void forward(std::vector<torch::Tensor>& tensors, torch::Tensor& last) {
    if (!tensors.empty()) {
      last = tensors.back();
    }
  }
};
TESSERA_MODULE(ListKeeper);

class Counting : public nn::Interceptor {
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
    calls.push_back(nn::type_name(module));
    return nn::find_invoker(key.hash)(module, args, first, last);
  }
  std::vector<std::string> calls;
};

class Interception : public ::testing::Test {
 protected:
  using Calls = std::vector<std::string>;
  torch::Tensor x_ = torch::ones(2);
  Counting counting_;
  nn::InterceptorScope scope_{&counting_};
};

TEST_F(Interception, CallOperatorArrowAndDereference) {
  Twice twice;
  EXPECT_TRUE(torch::equal(twice(x_), torch::full(2, 2.0)));
  EXPECT_TRUE(torch::equal(twice->forward(x_), torch::full(2, 2.0)));
  EXPECT_TRUE(torch::equal((*twice).forward(x_), torch::full(2, 2.0)));
  EXPECT_TRUE(torch::equal(twice.get()->forward(x_), torch::full(2, 2.0)));
  EXPECT_TRUE(torch::equal(twice.ptr()->forward(x_), torch::full(2, 2.0)));
  EXPECT_EQ(counting_.calls, Calls(5, "Twice"));
}

TEST_F(Interception, AsOfAModuleList) {
  torch::nn::ModuleList list;
  list->push_back(Twice(3.0));
  list->push_back(Const());
  EXPECT_TRUE(torch::equal((*list)[0]->as<Twice>()->forward(x_), torch::full(2, 3.0)));
  EXPECT_TRUE(torch::equal((*list)[1]->as<Const>()->forward(x_), torch::full(2, 2.0)));
  EXPECT_EQ(counting_.calls, (Calls{"Twice", "Const"}));
}

TEST_F(Interception, ContainersOfLibtorch) {
  torch::nn::Sequential sequence(Twice(2.0), torch::nn::ReLU(), Add());
  sequence->push_back(Twice(1.0));
  sequence->push_back("named", Twice(10.0));
  EXPECT_TRUE(torch::equal(sequence->forward(x_), torch::full(2, 70.0)));
  EXPECT_EQ(counting_.calls, (Calls{"Twice", "Add", "Twice", "Twice"}));
  torch::nn::AnyModule any(Twice(7.0));
  EXPECT_TRUE(torch::equal(any.forward(x_), torch::full(2, 7.0)));
  EXPECT_EQ(any.get<Twice>()->factor, 7);
  torch::nn::ModuleDict dict(
      std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{
          {"a", Twice(6.0).ptr()}});
  EXPECT_TRUE(torch::equal(dict["a"]->as<Twice>()->forward(x_), torch::full(2, 6.0)));
  std::vector<Twice> several{Twice(1.0), Twice(2.0)};
  for (auto& one : several) {
    x_ = one->forward(x_);
  }
  EXPECT_EQ(counting_.calls.size(), 8U);
}

TEST_F(Interception, DefaultArgumentsAndConversions) {
  WithDefault with;
  const auto mask = torch::zeros(2);
  EXPECT_TRUE(torch::equal(with->forward(x_), torch::full(2, 3.0)));
  EXPECT_TRUE(torch::equal(with->forward(x_, mask), torch::zeros(2)));
  EXPECT_TRUE(torch::equal(with->forward(x_, {}, 5), torch::full(2, 5.0)));
  EXPECT_TRUE(torch::equal(with(x_), torch::full(2, 3.0)));
  EXPECT_EQ(counting_.calls.size(), 4U);
}

TEST_F(Interception, VirtualForwardThroughABasePointer) {
  Add add;
  BaseBlock* base = add.get();
  EXPECT_TRUE(torch::equal(base->forward(x_), torch::full(2, 6.0)));
  EXPECT_EQ(counting_.calls, Calls{"Add"});
}

TEST_F(Interception, TemplatedForward) {
  AnyType any;
  EXPECT_TRUE(torch::equal(any->forward(x_), x_));
  EXPECT_EQ(counting_.calls, Calls{"AnyType"});
}

TEST_F(Interception, OfAFinalClassOnlyTheCallOperator) {
  Last last;
  EXPECT_TRUE(torch::equal(last(x_), torch::zeros(2)));
  EXPECT_TRUE(torch::equal(last->forward(x_), torch::zeros(2)));
  EXPECT_EQ(counting_.calls, Calls{"Last"});
}

// A call on another rank works on copies of its arguments.
TEST_F(Interception, WhatAForwardLeavesInItsArguments) {
  EncoderBlock block;
  std::vector<torch::Tensor> skips;
  int depth = 0;
  torch::Tensor x = x_;
  for (int i = 0; i < 2; ++i) {
    const torch::Tensor given = x;
    const torch::Tensor result = block->forward(x, skips, depth);
    EXPECT_TRUE(torch::equal(result, given * 2 + 1));
    EXPECT_TRUE(torch::equal(x, given * 2));
    EXPECT_TRUE(skips.back().is_same(given));
  }
  EXPECT_EQ(skips.size(), 2U);
  EXPECT_EQ(depth, 2);
  EXPECT_EQ(counting_.calls.size(), 2U);
}

TEST_F(Interception, AnArgumentThatStaysAsItWasIsTheSameTensor) {
  ListKeeper keeper;
  std::vector<torch::Tensor> tensors;
  torch::Tensor last = x_;
  keeper->forward(tensors, last);
  EXPECT_TRUE(last.is_same(x_));
  tensors = {torch::zeros(1)};
  keeper->forward(tensors, last);
  EXPECT_TRUE(last.is_same(tensors[0]));
}

TEST(Holder, AStringLiteralReachesAnOverloadedForward) {
  NamedMode net;
  Counting counting;
  const nn::InterceptorScope scope(&counting);
  EXPECT_TRUE(torch::equal(net->forward(torch::ones(1), "twice"), torch::full(1, 2.0)));
  EXPECT_EQ(counting.calls.size(), 1U);
}

TEST(Holder, PrintsTheScriptsClass) {
  std::ostringstream text;
  text << Twice() << ' ' << nn::Linear(2, 3);
  EXPECT_THAT(text.str(), HasSubstr("TwiceImpl"));
  EXPECT_THAT(text.str(), HasSubstr("torch::nn::Linear(in_features=2"));
  EXPECT_EQ(nn::type_name(*Twice()), "Twice");
  EXPECT_EQ(nn::type_name(*nn::Linear(2, 3)), "Linear");
}

TEST(Holder, TakesOverAnObjectThatNobodyElseHas) {
  Twice twice(std::make_shared<TwiceImpl>(9));
  Counting counting;
  const nn::InterceptorScope scope(&counting);
  EXPECT_TRUE(torch::equal(twice->forward(torch::ones(1)), torch::full(1, 9.0)));
  EXPECT_EQ(counting.calls.size(), 1U);
  const Twice same(twice.ptr());
  EXPECT_EQ(same.ptr(), twice.ptr());
}

TEST(Holder, RefusesAnObjectThatTheScriptKeeps) {
  const auto kept = std::make_shared<TwiceImpl>(9);
  try {
    const Twice twice(kept);
    FAIL() << "calls of `kept` are not seen";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Twice name(arguments...)"));
  }
}

// libtorch's Cloneable has what is registered in a virtual base.
TEST(Holder, ACloneHasWhatTheOriginalHasRegistered) {
  Cloneable net;
  const auto count = [](const torch::nn::Module& module) { return module.parameters().size(); };
  const auto copy = net->clone();
  EXPECT_EQ(count(*net), 1U);
  EXPECT_EQ(count(*copy), 1U);
  EXPECT_TRUE(copy->named_parameters()["inner.weight"].equal(net->inner->weight));
  const nn::Linear linear(3, 2);
  EXPECT_EQ(count(*linear->clone()), 2U);
  torch::nn::Sequential plain(nn::Linear(3, 3), nn::Linear(3, 2));
  EXPECT_EQ(count(*plain->clone()), 4U);
  // A holder that is given a value.
  const Cloneable moved{CloneableImpl()};
  EXPECT_EQ(count(*moved), 1U);
  EXPECT_EQ(moved->children().size(), 1U);
}

TEST(Holder, ContainersAreClonedWithTheirChildren) {
  nn::Sequential chain(nn::Linear(3, 3), nn::Linear(3, 2));
  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(chain->clone());
  ASSERT_NE(copy, nullptr);
  ASSERT_EQ(copy->size(), 2U);
  const auto x = torch::ones({1, 3});
  EXPECT_TRUE(copy->forward(x).equal(chain->forward(x)));
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : copy->parameters()) {
    parameter.detach().zero_();
  }
  EXPECT_TRUE(copy->forward(x).equal(torch::zeros({1, 2})));
  EXPECT_FALSE(chain->forward(x).equal(torch::zeros({1, 2})));
  nn::ModuleList<nn::Linear> list;
  list->push_back(nn::Linear(3, 2));
  EXPECT_EQ(list->clone()->parameters().size(), 2U);
}

TEST(Holder, AClonesCallsAreSeen) {
  Cloneable net;
  const auto copy = std::dynamic_pointer_cast<CloneableImpl>(net->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_NE(copy->inner->weight.data_ptr(), net->inner->weight.data_ptr());
  Cloneable held(copy);
  Counting counting;
  const nn::InterceptorScope scope(&counting);
  EXPECT_TRUE(torch::equal(held->forward(torch::ones(1)), torch::full(1, 4.0)));
  EXPECT_EQ(counting.calls, (std::vector<std::string>{"Cloneable", "Twice"}));
}

} // namespace
} // namespace tessera
