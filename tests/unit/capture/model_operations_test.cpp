#include "tessera/operations/capture/model_operations.h"

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/tensor/value.h"

namespace tessera::operations {
namespace {

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
    return nn::find_invoker(key.hash)(module, args, -1, -1);
  }
  int calls = 0;
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

TEST(ModelOperations, DivideNeedsACall) {
  ModelOperations operations(std::make_shared<torch::nn::Module>(), "net", {.parts = 2}, false);
  EXPECT_THROW(operations.divide(), ConfigError);
}

} // namespace
} // namespace tessera::operations
