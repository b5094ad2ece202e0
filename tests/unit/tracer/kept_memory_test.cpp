// What modules keep for their backward, as the allocator saw it, beside what they return.
#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"
#include "tessera/tracer/trace.h"

namespace tessera::tracer {
namespace {

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kTensor = kRows * kWidth * 4; // bytes of one activation

std::int64_t kept_of(const graph::ModelGraph& graph, const std::string& path) {
  for (const auto& module : graph.modules) {
    if (module.path == path) {
      return module.activation_bytes;
    }
  }
  throw std::runtime_error("no module " + path);
}

/// Returns one tensor and keeps `functions` for its backward: exp keeps its result. The products
/// with a number keep nothing.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int functions) : functions(functions) {
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = linear(x);
    for (int i = 0; i < functions; ++i) {
      x = torch::exp((x * 0.5) * 0.5);
    }
    return x;
  }
  nn::Linear linear{nullptr};
  int functions;
};
TESSERA_MODULE(Deep);

/// Changes in place what its modules return, also what they return twice.
struct KeepingNetImpl : torch::nn::Module {
  KeepingNetImpl() {
    deep = register_module("deep", Deep(5));
    flat = register_module("flat", Deep(1));
    plain = register_module("plain", torch::nn::Linear(kWidth, kWidth));
    drop = register_module("drop", nn::Dropout(0.5));
  }
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor y = deep(x);
    y += x;
    y = plain(flat(y));
    y.add_(1);
    return drop(y);
  }
  Deep deep{nullptr}, flat{nullptr};
  torch::nn::Linear plain{nullptr};
  nn::Dropout drop{nullptr};
};
TESSERA_MODULE(KeepingNet);

graph::ModelGraph traced(KeepingNet& net, bool measured) {
  const torch::Tensor x = torch::randn({kRows, kWidth});
  TraceOptions options;
  options.measure_kept_memory = measured;
  return trace(
      *net, [&] { net(x); }, options);
}

TEST(KeptMemory, IsWhatABackwardNeedsAndWhatIsReturned) {
  KeepingNet net;
  const graph::ModelGraph graph = traced(net, true);
  EXPECT_EQ(kept_of(graph, "deep"), 5 * kTensor);
  EXPECT_EQ(kept_of(graph, "deep.linear"), kTensor);
  EXPECT_EQ(kept_of(graph, "flat"), kTensor);
  EXPECT_EQ(kept_of(graph, "plain"), kTensor);
  // The mask, which libtorch keeps as numbers or as booleans.
  EXPECT_GE(kept_of(graph, "drop"), kTensor + kRows * kWidth);
  EXPECT_LE(kept_of(graph, "drop"), 2 * kTensor);
  EXPECT_EQ(kept_of(graph, ""), 0);
  const graph::ModelGraph estimated = traced(net, false);
  EXPECT_EQ(kept_of(estimated, "deep"), kTensor) << "an estimate cannot know it";
}

TEST(KeptMemory, IsTheSameEveryTime) {
  KeepingNet net;
  const graph::ModelGraph first = traced(net, true);
  EXPECT_EQ(graph::to_json(first), graph::to_json(traced(net, true)));
}

TEST(KeptMemory, LeavesNoGradientsAndNoHistory) {
  KeepingNet net;
  traced(net, true);
  for (const auto& parameter : net->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_FALSE(c10::memoryProfilingEnabled());
}

TEST(KeptMemory, OfDelayedParametersIsAnError) {
  KeepingNet net;
  for (auto& parameter : net->parameters()) {
    parameter.unsafeGetTensorImpl()->shallow_copy_from(
        torch::empty_like(parameter, torch::kMeta).getIntrusivePtr());
  }
  try {
    traced(net, true);
    FAIL() << "nothing was computed";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("measure_kept_memory"));
  }
}

/// The most bytes that lived at one time since it was made.
class Peak : public c10::MemoryReportingInfoBase {
 public:
  template <typename T>
  struct TotalOf;
  template <typename Class, typename T>
  struct TotalOf<void (Class::*)(void*, std::int64_t, T, T, c10::Device)> {
    using type = T;
  };
  using Total = TotalOf<decltype(&c10::MemoryReportingInfoBase::reportMemoryUsage)>::type;
  void reportMemoryUsage(void*, std::int64_t bytes, Total, Total, c10::Device) override {
    live_ += bytes;
    highest = std::max(highest, live_);
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }
  std::int64_t highest = 0;

 private:
  std::int64_t live_ = 0;
};

// Source: Karakus et al. 2021, appendix C.1: activations are not kept while tracing.
TEST(Trace, KeepsNoActivationsOfADeepModel) {
  constexpr int kLayers = 24;
  nn::Sequential deep;
  for (int i = 0; i < kLayers; ++i) {
    deep->push_back(Deep(1));
  }
  const torch::Tensor x = torch::randn({kRows, kWidth});
  const auto peak = std::make_shared<Peak>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
    trace(*deep, [&] { deep(x); });
  }
  EXPECT_GE(peak->highest, kTensor);
  EXPECT_LT(peak->highest, 8 * kTensor);
}

} // namespace
} // namespace tessera::tracer
