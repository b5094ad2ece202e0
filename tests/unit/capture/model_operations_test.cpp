#include "tessera/operations/capture/model_operations.h"

#include <map>
#include <optional>
#include <set>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/module.h"
#include "tessera/tensor/value.h"

namespace tessera::operations {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Function = std::function<torch::Tensor(torch::Tensor)>;

// Stands for the runtime: a call of a rank's target is run here, its tensors detached.
class OneProcess : public nn::Interceptor {
 public:
  bool wants(const torch::nn::Module& /*module*/) override {
    return false;
  }
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int /*first*/,
      int /*last*/) override {
    ++calls;
    asked_ = &module;
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&note));
    c10::IValue result = nn::find_invoker(key.hash)(module, args, -1, -1);
    at::removeCallback(handle);
    return result;
  }
  int calls = 0;
  /// By operator, the targets that ran it.
  static inline std::map<std::string, std::set<const torch::nn::Module*>> ran;

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    ran[function.name()].insert(asked_);
    return nullptr;
  }
  static inline const torch::nn::Module* asked_ = nullptr;
};

struct Divided {
  Divided(std::shared_ptr<torch::nn::Module> net, int parts, Function forward)
      : root(std::move(net)),
        forward(std::move(forward)),
        operations(root, "net", {.parts = parts}, false) {}

  torch::Tensor operator()(const torch::Tensor& x) {
    const nn::InterceptorScope scope(&process);
    return unpack<torch::Tensor>(operations.call(pack(x), [&](const c10::IValue& given) {
      return pack(forward(unpack<torch::Tensor>(given)));
    }));
  }

  // As rank 0: the others' operations are asked for by calls.
  std::map<std::string, int> place() {
    const std::map<std::string, int> ranks = operations.divide();
    operations.place(
        0,
        [ranks](const std::string& name) {
          const auto dot = name.rfind('.');
          return ranks.at(dot == std::string::npos ? std::string() : name.substr(0, dot));
        },
        [this](const std::string& name) {
          const auto* found = root->named_parameters().find(name);
          return found != nullptr ? *found : root->named_buffers()[name];
        });
    return ranks;
  }

  std::shared_ptr<torch::nn::Module> root;
  Function forward;
  OneProcess process;
  ModelOperations operations;
};

torch::nn::Sequential deep_net() {
  torch::nn::Sequential net;
  for (int i = 0; i < 6; ++i) {
    net->push_back(torch::nn::Linear(4, 4));
    net->push_back(torch::nn::Functional([](torch::Tensor x) { return torch::relu_(x); }));
  }
  return net;
}

TEST(ModelOperations, BeforeAndAfterThePartitionAsTheModelItself) {
  torch::manual_seed(1);
  torch::nn::Sequential net = deep_net();
  Divided divided(net.ptr(), 3, [net](torch::Tensor x) mutable { return net->forward(x); });
  const auto x = torch::randn({5, 4});
  EXPECT_TRUE(torch::equal(divided(x), net->forward(x)));
  EXPECT_EQ(divided.process.calls, 0) << "the model is whole";
  const auto ranks = divided.place();
  EXPECT_EQ(ranks.at("0"), 0);
  EXPECT_EQ(ranks.at("4"), 1);
  EXPECT_EQ(ranks.at("10"), 2);
  const auto y = divided(x);
  EXPECT_TRUE(torch::equal(y, net->forward(x)));
  EXPECT_EQ(divided.process.calls, 2);
  y.sum().backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net->parameters()) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad() = torch::Tensor();
  }
  net->forward(x).sum().backward();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(torch::equal(gradients[i], net->parameters()[i].grad())) << i;
  }
}

TEST(ModelOperations, OtherShapesAreRecordedAnew) {
  torch::nn::Sequential net = deep_net();
  Divided divided(net.ptr(), 2, [net](torch::Tensor x) mutable { return net->forward(x); });
  divided(torch::randn({5, 4}));
  divided.place();
  for (const int rows : {5, 3, 5, 1}) {
    const auto x = torch::randn({rows, 4});
    EXPECT_TRUE(torch::equal(divided(x), net->forward(x))) << rows;
  }
}

TEST(ModelOperations, NamesTheOperatorThatDiffers) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  bool other = false;
  Divided divided(net.ptr(), 2, [net, &other](torch::Tensor x) mutable {
    x = net->ptr(0)->as<torch::nn::Linear>()->forward(x);
    x = other ? x.sin() : x.tanh();
    return net->ptr(1)->as<torch::nn::Linear>()->forward(x);
  });
  const auto x = torch::randn({2, 4});
  divided(x);
  divided.place();
  divided(x);
  other = true;
  try {
    divided(x);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("operation 2 of the model's forward, aten::sin"));
    EXPECT_THAT(error.what(), HasSubstr("aten::sin"));
    EXPECT_THAT(error.what(), HasSubstr("aten::tanh"));
  }
  other = false;
  divided(x); // the next step may follow
}

TEST(ModelOperations, NamesOtherArgumentsAndAShorterForward) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  double factor = 2;
  bool shorter = false;
  Divided divided(net.ptr(), 2, [&, net](torch::Tensor x) mutable {
    x = net->forward(x * factor);
    return shorter ? x : x.tanh();
  });
  const auto x = torch::randn({2, 4});
  divided(x);
  divided.place();
  divided(x);
  factor = 3;
  EXPECT_THROW(divided(x), UserError);
  factor = 2;
  shorter = true;
  EXPECT_THROW(divided(x), UserError);
}

TEST(ModelOperations, BatchStatisticsAndDropoutAsTheModelItself) {
  torch::manual_seed(2);
  torch::nn::Sequential net(
      torch::nn::Linear(4, 4),
      torch::nn::BatchNorm1d(4),
      torch::nn::Dropout(0.5),
      torch::nn::Linear(4, 4),
      torch::nn::BatchNorm1d(4),
      torch::nn::Dropout(0.5));
  auto plain = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  Divided divided(net.ptr(), 2, [net](torch::Tensor x) mutable { return net->forward(x); });
  divided(torch::randn({5, 4}));
  {
    torch::NoGradGuard no_grad; // the call above has moved the statistics
    for (std::size_t i = 0; i < net->buffers().size(); ++i) {
      net->buffers()[i].copy_(plain->buffers()[i]);
    }
  }
  divided.place();
  for (const bool training : {true, true, false, true}) {
    net->train(training);
    plain->train(training);
    const auto x = torch::randn({5, 4});
    torch::manual_seed(9);
    const auto wanted = plain->forward(x);
    torch::manual_seed(9);
    EXPECT_TRUE(torch::equal(divided(x), wanted));
  }
  for (std::size_t i = 0; i < net->buffers().size(); ++i) {
    EXPECT_TRUE(torch::equal(net->buffers()[i], plain->buffers()[i])) << i;
  }
}

TEST(ModelOperations, GradientsThatTheForwardSwitchesOffStayOff) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  Divided divided(net.ptr(), 2, [net](torch::Tensor x) mutable {
    {
      torch::NoGradGuard no_grad;
      x = net->ptr(0)->as<torch::nn::Linear>()->forward(x);
    }
    return net->ptr(1)->as<torch::nn::Linear>()->forward(x);
  });
  divided(torch::randn({2, 4}));
  divided.place();
  divided(torch::randn({2, 4})).sum().backward();
  EXPECT_FALSE(net->parameters()[0].grad().defined());
  EXPECT_TRUE(net->parameters()[2].grad().defined());
}

TEST(ModelOperations, AShapeThatDependsOnNumbersIsNamed) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4));
  // No kernel tells that the length of the result is in the numbers.
  torch::Tensor lengths = torch::tensor({2, 2});
  Divided divided(net.ptr(), 2, [&, net](torch::Tensor x) mutable {
    return net->forward(x).repeat_interleave(lengths, 0);
  });
  EXPECT_THROW(divided(torch::randn({2, 4})), Error);
}

std::string text_of_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
}
torch::Tensor layer(torch::nn::Sequential& net, int index, const torch::Tensor& x) {
  return net->ptr(index)->as<torch::nn::Linear>()->forward(x);
}

TEST(ModelOperations, ScopesOfAForwardPlaceItsOperators) {
  torch::nn::Sequential net = two_layers();
  Divided divided(net.ptr(), 2, [net](torch::Tensor x) mutable {
    {
      const tessera::partition scope(1);
      x = layer(net, 0, x);
    }
    return layer(net, 1, x);
  });
  const auto x = torch::randn({2, 4});
  divided(x);
  const auto ranks = divided.place();
  EXPECT_EQ(ranks.at("0"), 1);
  EXPECT_EQ(ranks.at("1"), 0);
  EXPECT_TRUE(torch::equal(divided(x), net->forward(x)));
  EXPECT_EQ(divided.process.calls, 1);
}

TEST(ModelOperations, ScopesOfOneNameStayTogetherInLaterKindsOfCallsToo) {
  torch::nn::Sequential net = two_layers();
  bool placed = true;
  Divided divided(net.ptr(), 3, [net, &placed](torch::Tensor x) mutable {
    {
      const tessera::colocation scope("ends");
      const std::optional<tessera::partition> rank =
          placed ? std::optional<tessera::partition>(std::in_place, 2) : std::nullopt;
      x = x.cos();
    }
    x = layer(net, 1, layer(net, 0, x));
    const tessera::colocation scope("ends");
    return x.sin();
  });
  divided(torch::randn({5, 4}));
  divided.place();
  const auto* third = divided.operations.targets()[2].get();
  for (const int rows : {5, 2}) {
    placed = rows == 5;
    OneProcess::ran.clear();
    divided(torch::randn({rows, 4}));
    EXPECT_THAT(OneProcess::ran["aten::cos"], ElementsAre(third)) << rows;
    EXPECT_THAT(OneProcess::ran["aten::sin"], ElementsAre(third)) << rows;
  }
}

TEST(ModelOperations, NamesARankThatThereIsNot) {
  torch::nn::Sequential net = two_layers();
  Divided divided(net.ptr(), 2, [net](torch::Tensor x) mutable {
    const tessera::partition scope(2);
    return net->forward(x);
  });
  const std::string text = text_of_error([&] { divided(torch::randn({2, 4})); });
  EXPECT_THAT(text, HasSubstr("operation 0 of the model's forward"));
  EXPECT_THAT(text, HasSubstr("tessera::partition(2)"));
  EXPECT_THAT(text, HasSubstr("write 0 to 1"));
}

TEST(ModelOperations, NamesTwoWishesThatCannotBothBe) {
  torch::nn::Sequential net = two_layers();
  Divided divided(net.ptr(), 2, [net](torch::Tensor x) mutable {
    {
      const tessera::partition scope(0);
      x = layer(net, 0, x);
    }
    const tessera::partition scope(1);
    return layer(net, 0, x);
  });
  divided(torch::randn({2, 4}));
  const std::string text = text_of_error([&] { divided.operations.divide(); });
  EXPECT_THAT(text, HasSubstr("rank 0 (tessera::partition(0))"));
  EXPECT_THAT(text, HasSubstr("rank 1 (tessera::partition(1))"));
  EXPECT_THAT(text, HasSubstr("use '0.weight'"));
}

TEST(ModelOperations, NamesScopesThatChange) {
  torch::nn::Sequential net = two_layers();
  int rank = 1;
  Divided divided(net.ptr(), 2, [net, &rank](torch::Tensor x) mutable {
    const tessera::partition scope(rank);
    return net->forward(x);
  });
  divided(torch::randn({2, 4}));
  divided.place();
  rank = 0;
  const std::string text = text_of_error([&] { divided(torch::randn({2, 4})); });
  EXPECT_THAT(text, HasSubstr("is called in tessera::partition(0)"));
  EXPECT_THAT(text, HasSubstr("was in tessera::partition(1) in the recorded step"));
}

TEST(ModelOperations, AScopeAroundTheCallIsRefused) {
  torch::nn::Sequential net = two_layers();
  Divided divided(net.ptr(), 2, [net](torch::Tensor x) mutable { return net->forward(x); });
  const tessera::colocation scope;
  const std::string text = text_of_error([&] { divided(torch::randn({2, 4})); });
  EXPECT_THAT(text, HasSubstr("tessera::colocation number 0 without a name"));
  EXPECT_THAT(text, HasSubstr("inside of its forward only"));
}

TEST(ModelOperations, WhatTheScriptHasPlacedByModulesHolds) {
  torch::nn::Sequential net = deep_net();
  Divided divided(net.ptr(), 3, [net](torch::Tensor x) mutable { return net->forward(x); });
  divided(torch::randn({2, 4}));
  ModelOperations manual(net.ptr(), "net", {.parts = 3, .default_part = 2}, false);
  const nn::InterceptorScope scope(&divided.process);
  manual.call(pack(torch::randn({2, 4})), [&](const c10::IValue& given) {
    return pack(net->forward(unpack<torch::Tensor>(given)));
  });
  const auto ranks = manual.divide({{"4", 1}, {"6", 0}});
  EXPECT_EQ(ranks.at("0"), 2);
  EXPECT_EQ(ranks.at("4"), 1);
  EXPECT_EQ(ranks.at("6"), 0);
  EXPECT_EQ(ranks.at("10"), 2);
}

TEST(OperationScopes, AreRefusedInAStepWithoutRecordedOperators) {
  OneProcess step;
  const nn::InterceptorScope scope(&step);
  for (const auto& open : std::vector<std::function<void()>>{
           [] { const tessera::partition scope(1); },
           [] { const tessera::colocation scope("a"); },
           [] { const tessera::colocation scope; }}) {
    EXPECT_THAT(text_of_error(open), HasSubstr("inside a step where it has no effect"));
  }
  EXPECT_THROW(tessera::colocation(""), ConfigError);
}

TEST(OperationScopes, AreQuietInAScriptOfOneProcess) {
  const tessera::partition rank(1);
  const tessera::colocation named("a");
  const tessera::colocation unnamed;
}

TEST(ModelOperations, DivideNeedsACall) {
  ModelOperations operations(std::make_shared<torch::nn::Module>(), "net", {.parts = 2}, false);
  EXPECT_THROW(operations.divide(), ConfigError);
}

} // namespace
} // namespace tessera::operations
