#include "tessera/tracer/trace.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"
#include "tessera/tracer/describe.h"

namespace tessera::tracer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A layer in torch's own holder inside: its operator can run elsewhere, so it is listed too.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    linear = register_module("linear", nn::Linear(4, 4));
    scale = register_module("scale", torch::nn::Linear(4, 4));
    norm = register_module("norm", nn::BatchNorm1d(4));
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = linear(x);
    return norm(y + scale(x));
  }
  nn::Linear linear{nullptr};
  torch::nn::Linear scale{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TESSERA_MODULE(Block);

struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const torch::Tensor& shared) {
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", torch::zeros(4));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::linear(x, weight, bias);
  }
  torch::Tensor weight, bias;
};
TESSERA_MODULE(TiedHead);

// Calls its children in an order that is not that of registration; `unused`
// never, `first` twice; the head is tied to `first.linear`.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    unused = register_module("unused", nn::Linear(4, 4));
    second = register_module("second", Block());
    first = register_module("first", Block());
    head = register_module("head", TiedHead(first->linear->weight));
    again = register_module("again", first.ptr());
    layers = register_module("layers", nn::Sequential(nn::Linear(4, 4), nn::ReLU()));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(second(first(torch::dropout(x, 0.5, is_training()))));
    return head(layers(x));
  }
  nn::Linear unused{nullptr};
  Block second{nullptr}, first{nullptr};
  TiedHead head{nullptr};
  std::shared_ptr<torch::nn::Module> again;
  nn::Sequential layers{nullptr};
};
TESSERA_MODULE(Net);

const graph::Module& find(const graph::ModelGraph& graph, const std::string& path) {
  for (const auto& module : graph.modules) {
    if (module.path == path) {
      return module;
    }
  }
  throw std::runtime_error("no module " + path);
}

std::vector<std::string> parameter_names(
    const graph::ModelGraph& graph,
    const graph::Module& module) {
  std::vector<std::string> names;
  for (const int index : module.parameters) {
    names.push_back(graph.parameters[index].name);
  }
  return names;
}

TEST(Describe, ListsInterceptableModulesInOrderOfRegistration) {
  Net net;
  const graph::ModelGraph graph = describe(*net, "net");
  std::vector<std::string> paths;
  for (const auto& module : graph.modules) {
    paths.push_back(module.path);
  }
  EXPECT_THAT(
      paths,
      ElementsAre(
          "",
          "unused",
          "second",
          "second.linear",
          "second.scale",
          "second.norm",
          "first",
          "first.linear",
          "first.scale",
          "first.norm",
          "head",
          "layers",
          "layers.0",
          "layers.1"));
  EXPECT_EQ(graph.name, "net");
  EXPECT_FALSE(graph.traced);
  EXPECT_EQ(find(graph, "first").type, "Block");
  EXPECT_THAT(graph.modules[0].children, ElementsAre(1, 2, 6, 10, 11));
  EXPECT_EQ(find(graph, "layers.1").parent, 11);
}

TEST(Describe, ParametersAreListedOnceAndNamedByEveryHolder) {
  Net net;
  const graph::ModelGraph graph = describe(*net);
  EXPECT_THAT(
      parameter_names(graph, find(graph, "second.scale")),
      ElementsAre("second.scale.weight", "second.scale.bias"));
  EXPECT_THAT(
      parameter_names(graph, find(graph, "head")), ElementsAre("first.linear.weight", "head.bias"));
  std::int64_t elements = 0;
  for (const auto& parameter : graph.parameters) {
    elements += parameter.elements;
    EXPECT_EQ(parameter.dtype, "float32");
    EXPECT_EQ(parameter.bytes, 4 * parameter.elements);
  }
  // unused 20, blocks 2 x (20 + 20 + 8), tied head's bias 4, layers 20.
  EXPECT_EQ(elements, 20 + 96 + 4 + 20);
}

TEST(Describe, SharedPlainModuleBelongsToBothHolders) {
  struct HolderImpl : torch::nn::Module {
    explicit HolderImpl(torch::nn::Linear shared) {
      register_module("shared", std::move(shared));
    }
    torch::Tensor forward(torch::Tensor x) {
      return x;
    }
  };
  torch::nn::Linear shared(2, 2);
  struct RootImpl : torch::nn::Module {};
  RootImpl root;
  root.register_module("a", Module<HolderImpl>(shared).ptr());
  root.register_module("b", Module<HolderImpl>(shared).ptr());
  const graph::ModelGraph graph = describe(root);
  EXPECT_EQ(graph.parameters.size(), 2u);
  EXPECT_EQ(find(graph, "a").parameters, find(graph, "b").parameters);
  EXPECT_EQ(graph.modules[0].type, "Root");
}

TEST(Describe, ManualPartitionsAreKept) {
  struct RootImpl : torch::nn::Module {};
  RootImpl root;
  {
    const tessera::partition scope(2);
    root.register_module("a", nn::Linear(2, 2).ptr());
  }
  root.register_module("b", nn::Linear(2, 2).ptr());
  const graph::ModelGraph graph = describe(root);
  EXPECT_EQ(find(graph, "a").manual_partition, 2);
  EXPECT_EQ(find(graph, "b").manual_partition, -1);
}

struct PassImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return x;
  }
};
TESSERA_MODULE(Pass);

struct InnerImpl : torch::nn::Module {
  InnerImpl() {
    linear = register_module("linear", nn::Linear(4, 6));
    pass = register_module("pass", Pass());
  }
  torch::Tensor forward(torch::Tensor x) {
    return pass(linear(x));
  }
  nn::Linear linear{nullptr};
  Pass pass{nullptr};
};
TESSERA_MODULE(Inner);

struct PartsImpl : torch::nn::Module {
  PartsImpl() {
    inner = register_module("inner", Inner());
  }
  std::vector<torch::Tensor> forward(torch::Tensor x) {
    return torch::tanh(inner(x)).chunk(3, 1);
  }
  Inner inner{nullptr};
};
TESSERA_MODULE(Parts);

// A tensor that goes up through three levels is one tensor; parts of one storage are no more than
// the storage, and an answer that is the question is nothing new.
TEST(Trace, CountsReturnedMemoryOnce) {
  Parts net;
  const torch::Tensor x = torch::ones({8, 4});
  const graph::ModelGraph graph = trace(*net, [&] { net(x); }, {.name = "net"});
  constexpr std::int64_t kOutput = 8 * 6 * 4;
  EXPECT_EQ(find(graph, "inner.linear").activation_bytes, kOutput);
  EXPECT_EQ(find(graph, "inner.pass").activation_bytes, 0);
  EXPECT_EQ(find(graph, "inner").activation_bytes, 0);
  EXPECT_EQ(find(graph, "").activation_bytes, kOutput); // of tanh, in three views
  for (const char* path : {"", "inner", "inner.pass", "inner.linear"}) {
    EXPECT_EQ(find(graph, path).returned_bytes, kOutput) << path;
  }
}

TEST(Trace, RecordsOrderCallsAndBytes) {
  Net net;
  const torch::Tensor x = torch::ones({8, 4});
  const graph::ModelGraph graph = trace(*net, [&] { net(x); }, {.name = "net"});
  EXPECT_TRUE(graph.traced);
  EXPECT_FALSE(graph.timed);
  const std::vector<std::pair<std::string, int>> first_calls{
      {"", 0},
      {"first", 1},
      {"first.linear", 2},
      {"first.scale", 3},
      {"first.norm", 4},
      {"second", 5},
      {"second.linear", 6},
      {"second.scale", 7},
      {"second.norm", 8},
      {"layers", 13},
      {"layers.0", 14},
      {"layers.1", 15},
      {"head", 16},
      {"unused", -1}};
  for (const auto& [path, position] : first_calls) {
    EXPECT_EQ(find(graph, path).first_call, position) << path;
  }
  EXPECT_EQ(find(graph, "first").calls, 2);
  EXPECT_EQ(find(graph, "first.norm").calls, 2);
  EXPECT_EQ(find(graph, "unused").calls, 0);
  constexpr std::int64_t kOutput = 8 * 4 * 4;
  EXPECT_EQ(find(graph, "first.norm").activation_bytes, 2 * kOutput);
  EXPECT_EQ(find(graph, "first").activation_bytes, 0); // what its norm returned
  EXPECT_EQ(find(graph, "head").activation_bytes, kOutput);
  EXPECT_EQ(find(graph, "").activation_bytes, 0);
  EXPECT_EQ(find(graph, "unused").activation_bytes, 0);
}

TEST(Trace, LeavesTheModelAsItWas) {
  Net net;
  torch::manual_seed(5);
  const torch::Tensor x = torch::ones({8, 4}, torch::requires_grad());
  std::vector<torch::Tensor> before;
  for (const auto& buffer : net->buffers()) {
    before.push_back(buffer.clone());
  }
  torch::manual_seed(6);
  const torch::Tensor expected = torch::rand(3);
  torch::manual_seed(6);
  torch::Tensor output;
  trace(*net, [&] { output = net(x); }, {.measure_seconds = true});
  EXPECT_TRUE(torch::equal(torch::rand(3), expected));
  EXPECT_FALSE(output.requires_grad());
  const auto after = net->buffers();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(after[i], before[i]));
  }
  for (const auto& parameter : net->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(nn::current_interceptor(), nullptr);
}

struct GrowingImpl : torch::nn::Module {
  GrowingImpl() {
    seen = register_buffer("seen", torch::tensor({1.0F, 2.0F}));
  }
  torch::Tensor forward(torch::Tensor x) {
    seen.resize_({seen.size(0) + 1}).fill_(7);
    return x * 2;
  }
  torch::Tensor seen;
};
TESSERA_MODULE(Growing);

TEST(Trace, ABufferThatTheForwardResizesIsRestored) {
  Growing net;
  const torch::Tensor x = torch::ones({8, 4});
  trace(*net, [&] { net(x); }, {.name = "net"});
  EXPECT_TRUE(net->seen.equal(torch::tensor({1.0F, 2.0F})));
}

TEST(Trace, StateIsRestoredWhenTheForwardThrows) {
  Net net;
  const auto mean = net->first->norm->running_mean.clone();
  EXPECT_THROW(
      trace(
          *net,
          [&] {
            net->first(torch::ones({8, 4}));
            throw std::runtime_error("user");
          }),
      std::runtime_error);
  EXPECT_TRUE(torch::equal(net->first->norm->running_mean, mean));
}

TEST(Trace, SecondsIncludeChildren) {
  Net net;
  const torch::Tensor x = torch::ones({64, 4});
  const graph::ModelGraph graph = trace(*net, [&] { net(x); }, {.measure_seconds = true});
  EXPECT_TRUE(graph.timed);
  for (const auto& module : graph.modules) {
    EXPECT_EQ(module.forward_seconds > 0, module.calls > 0) << module.path;
    double children = 0;
    for (const int child : module.children) {
      children += graph.modules[child].forward_seconds;
    }
    EXPECT_GE(module.forward_seconds, children) << module.path;
  }
}

TEST(Trace, RunCountsAsTheRootsCallWhenTheHolderWasPassedBy) {
  Net net;
  const graph::ModelGraph graph = trace(
      *net,
      [&] {
        net->forward(torch::ones({8, 4}));
      },
      {.measure_seconds = true});
  EXPECT_EQ(graph.modules[0].calls, 1);
  EXPECT_EQ(graph.modules[0].first_call, 0);
  EXPECT_EQ(find(graph, "first").first_call, 1);
  EXPECT_GE(graph.modules[0].forward_seconds, find(graph, "first").forward_seconds);
}

TEST(Trace, AForwardThatChangesAParameterIsRefused) {
  Net net;
  try {
    trace(*net, [&] { net->head->bias.add_(1); });
    FAIL() << "the change went unnoticed";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("head.bias"));
  }
}

} // namespace
} // namespace tessera::tracer
