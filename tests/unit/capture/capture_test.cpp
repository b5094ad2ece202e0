#include "tessera/operations/capture/capture.h"

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/module.h"
#include "tessera/operations/capture/program.h"
#include "tessera/tensor/value.h"

namespace tessera::operations {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Function = std::function<torch::Tensor(torch::Tensor)>;

Program recorded(torch::nn::Module& root, const torch::Tensor& x, const Function& forward) {
  const VariableTable variables = variables_of(root);
  Capture capture(variables, nullptr);
  capture.run(pack(x), [&](const c10::IValue& given) {
    return pack(forward(unpack<torch::Tensor>(given)));
  });
  return capture.take_program();
}

Program recorded(const torch::Tensor& x, const Function& forward) {
  const auto none = std::make_shared<torch::nn::Module>();
  return recorded(*none, x, forward);
}

std::string refusal(const Function& forward) {
  try {
    recorded(torch::ones({2, 3}), forward);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> names(const Program& program) {
  std::vector<std::string> list;
  for (const Call& call : program.calls) {
    list.push_back(call.op);
  }
  return list;
}

TEST(Capture, APlainSequentialAsAGraph) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::ReLU(), torch::nn::Linear(4, 5));
  const Program program =
      recorded(*net, torch::ones({2, 3}), [&](torch::Tensor x) { return net->forward(x); });
  EXPECT_THAT(
      names(program),
      ElementsAre("aten::t", "aten::addmm", "aten::relu", "aten::t", "aten::addmm"));
  const Graph graph = make_graph({&program}, variables_of(*net).list, "net");
  ASSERT_EQ(graph.variables.size(), 4U);
  EXPECT_EQ(graph.variables[0].name, "0.weight");
  EXPECT_EQ(graph.variables[0].module, "0");
  EXPECT_EQ(graph.variables[0].bytes, 3 * 4 * 4);
  EXPECT_THAT(graph.operations[0].variables, ElementsAre(0));
  EXPECT_THAT(graph.operations[1].variables, ::testing::UnorderedElementsAre(0, 1))
      << "the view of a weight stays with it";
  EXPECT_THAT(graph.operations[2].variables, IsEmpty());
  EXPECT_THAT(predecessors(graph, 1), ElementsAre(0));
  EXPECT_EQ(graph.tensors[graph.operations[1].makes[0]].bytes, 2 * 4 * 4);
  EXPECT_THAT(graph.results, graph.operations[4].makes);
}

TEST(Capture, RunsNothingAndDrawsNothing) {
  torch::manual_seed(5);
  const auto wanted = torch::rand({3});
  torch::manual_seed(5);
  const Program program = recorded(torch::ones({2, 3}), [](torch::Tensor x) {
    EXPECT_THROW(x.data_ptr(), c10::Error);
    return torch::dropout(x + torch::rand({2, 3}), 0.5, true);
  });
  EXPECT_TRUE(torch::equal(torch::rand({3}), wanted));
  EXPECT_THAT(names(program), ElementsAre("aten::rand", "aten::add", "aten::dropout"));
  const Graph graph = make_graph({&program}, {}, "");
  EXPECT_THAT(graph.operations[2].after, ElementsAre(0)) << "random numbers stay in order";
}

struct InnerImpl : torch::nn::Module {
  InnerImpl() {
    weight = register_parameter("weight", torch::ones({3}));
    bias = register_parameter("bias", torch::ones({3}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return (x * weight).tanh() + bias;
  }
  torch::Tensor weight, bias;
};
TESSERA_MODULE(Inner);

struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    inner = register_module("inner", Inner());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return inner(x) + x;
  }
  Inner inner{nullptr};
};
TESSERA_MODULE(Outer);

TEST(Capture, KnowsTheLayerWhereModulesHaveHolders) {
  Outer net;
  const Program program =
      recorded(*net, torch::ones({2, 3}), [&](torch::Tensor x) { return net(x); });
  EXPECT_THAT(program.layers, ElementsAre("inner", "inner", "inner", ""));
}

TEST(Capture, ChangesInPlaceStayWithWhatTheyChange) {
  const Program program = recorded(torch::ones({2, 3}), [](torch::Tensor x) {
    auto y = x * 2;
    auto half = y.slice(1, 0, 2);
    auto other = x.cos();
    half.relu_();
    const auto sum = y.sum();
    return sum + other.sum();
  });
  // mul slice cos relu_ sum sum add: what reads y afterwards may be elsewhere.
  const Graph graph = make_graph({&program}, {}, "");
  EXPECT_EQ(graph.operations[3].name, "aten::relu_");
  ASSERT_EQ(graph.inseparable.size(), 1U);
  EXPECT_THAT(graph.inseparable[0], Contains(0));
  EXPECT_THAT(graph.inseparable[0], Contains(1));
  EXPECT_THAT(graph.inseparable[0], ::testing::Not(Contains(4)));
  EXPECT_THAT(predecessors(graph, 4), Contains(3));
}

TEST(Capture, ACopyOfAnArgumentMayBeChanged) {
  const Program program =
      recorded(torch::ones({2, 3}), [](torch::Tensor x) { return x.to(torch::kDouble).add_(1); });
  EXPECT_THAT(names(program), ElementsAre("aten::to", "aten::add_"));
  EXPECT_THAT(
      refusal([](torch::Tensor x) {
        return x.view({3, 2}).add_(1);
      }),
      HasSubstr("aten::add_"));
}

TEST(Capture, TensorsMadeOfNumbersAreGiven) {
  const Program program = recorded(torch::ones({2, 3}), [](torch::Tensor x) {
    return x * torch::tensor({1.f, 2.f, 3.f}).sqrt();
  });
  EXPECT_THAT(names(program), ElementsAre("aten::mul"));
  EXPECT_EQ(program.values[1].source, ProgramValue::Source::kGiven);
}

TEST(Capture, NamesWhatReadsNumbers) {
  EXPECT_THAT(
      refusal([](torch::Tensor x) { return x.cos().item<float>() * x; }),
      ::testing::AllOf(HasSubstr("operation 1"), HasSubstr("aten::item"), HasSubstr("numbers")));
  EXPECT_THAT(refusal([](torch::Tensor x) { return x.nonzero(); }), HasSubstr("aten::nonzero"));
  EXPECT_THAT(
      refusal([](torch::Tensor x) { return x.masked_select(x > 0); }),
      HasSubstr("aten::masked_select"));
}

TEST(Capture, NamesChangesThatTheCallerWouldNotSee) {
  EXPECT_THAT(refusal([](torch::Tensor x) { return x.add_(1); }), HasSubstr("aten::add_"));
  EXPECT_THAT(
      refusal([](torch::Tensor x) {
        auto table = torch::tensor({1.f, 2.f, 3.f});
        table.add_(x.sum());
        return table;
      }),
      HasSubstr("torch::zeros"));
}

struct Doubled : torch::autograd::Function<Doubled> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::tensor_list gradients) {
    return {gradients[0] * 3};
  }
};

TEST(Capture, NamesFunctionsOfAutogradAndHooks) {
  EXPECT_THAT(
      refusal([](torch::Tensor x) { return Doubled::apply(x.cos()); }), HasSubstr("Doubled"));
  EXPECT_THAT(
      refusal([](torch::Tensor x) {
        auto y = x.cos();
        y.register_hook([](torch::Tensor gradient) { return gradient * 2; });
        return y;
      }),
      HasSubstr("hook"));
}

TEST(Capture, ATensorThatIsKeptIsNamedWhenItIsUsed) {
  torch::Tensor kept;
  recorded(torch::ones({2}), [&](torch::Tensor x) { return kept = x.cos(); });
  EXPECT_THROW(kept + 1, UserError);
  EXPECT_THAT(refusal([&](torch::Tensor x) { return x + kept; }), HasSubstr("earlier forward"));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_module("first", Inner());
    second = register_module("second", Inner());
    auto bare = std::make_shared<torch::nn::Module>();
    bare->register_parameter("own", torch::ones({3}));
    bare->register_parameter("shared", second->weight);
    third = register_module("third", bare);
  }
  Inner first{nullptr}, second{nullptr};
  std::shared_ptr<torch::nn::Module> third;
};

TEST(Capture, ModulesThatShareAVariableGoByOneName) {
  const auto net = std::make_shared<TiedImpl>();
  std::map<std::string, std::string> module_of;
  for (const ModelVariable& variable : variables_of(*net).list) {
    module_of[variable.name] = variable.module;
  }
  EXPECT_EQ(module_of.size(), 5U);
  EXPECT_EQ(module_of.at("first.weight"), "first");
  EXPECT_EQ(module_of.at("third.own"), module_of.at("second.bias"));
}

} // namespace
} // namespace tessera::operations
