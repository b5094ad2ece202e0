#include "tessera/nn/module/activation_checkpointing.h"

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/recompute/recomputation.h"

namespace tessera::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Names the regions in which modules ran, one entry a run.
std::vector<std::string>& regions() {
  static std::vector<std::string> list;
  return list;
}

struct StepImpl : torch::nn::Module {
  StepImpl() {
    linear = register_module("linear", nn::Linear(4, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const std::string* region = recompute::inside();
    regions().push_back(region == nullptr ? "none" : *region);
    return torch::dropout(torch::tanh(linear(x)), 0.5, is_training());
  }
  nn::Linear linear{nullptr};
};
TESSERA_MODULE(Step);

struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    inner = register_module("inner", Step());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return inner(x) + x;
  }
  Step inner{nullptr};
};
TESSERA_MODULE(Outer);

struct NoHolderImpl : torch::nn::Module {};

template <typename Call>
std::vector<torch::Tensor>
gradients(const std::vector<torch::Tensor>& parameters, Call call, std::int64_t rows = 3) {
  for (torch::Tensor parameter : parameters) {
    parameter.mutable_grad() = torch::Tensor();
  }
  torch::manual_seed(5);
  call(torch::ones({rows, 4})).pow(2).sum().backward();
  std::vector<torch::Tensor> result;
  for (const torch::Tensor& parameter : parameters) {
    result.push_back(parameter.grad().clone());
  }
  return result;
}

void expect_equal(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(wanted[i])) << i;
  }
}

TEST(ActivationCheckpointing, OfAFlaggedModuleOutsideOfTheLibrarysSteps) {
  Outer net;
  const auto call = [&](const torch::Tensor& x) { return net(x); };
  const auto wanted = gradients(net->parameters(), call);
  set_activation_checkpointing(net->inner);
  set_activation_checkpointing(net); // the inner flag counts for nothing now
  regions().clear();
  expect_equal(gradients(net->parameters(), call), wanted);
  EXPECT_EQ(regions().size(), 2U);
  EXPECT_THAT(regions().front(), HasSubstr("Outer"));
}

TEST(ActivationCheckpointing, OfOneCall) {
  Step net;
  const auto wanted =
      gradients(net->parameters(), [&](const torch::Tensor& x) { return net(net(x)); });
  regions().clear();
  const auto got = gradients(
      net->parameters(), [&](const torch::Tensor& x) { return net(checkpoint_call(net, x)); });
  expect_equal(got, wanted);
  EXPECT_EQ(regions().size(), 3U);
  EXPECT_EQ(regions()[1], "none");
}

// The second run drops other elements than the first: what comes back is no gradient of what went
// out, which is what the caller asked for by saying that there is no randomness.
TEST(ActivationCheckpointing, WithoutTheRandomNumbersOfTheFirstRun) {
  Step net;
  const auto call = [&](const torch::Tensor& x) { return net(x); };
  const int rows = 64; // of few rows two masks may do the same
  const auto wanted = gradients(net->parameters(), call, rows);
  for (const bool keeps : {true, false}) {
    set_activation_checkpointing(net, {.preserve_rng_state = keeps});
    const auto got = gradients(net->parameters(), call, rows);
    EXPECT_EQ(got[0].equal(wanted[0]), keeps);
    EXPECT_EQ(got[1].equal(wanted[1]), keeps);
  }
}

TEST(ActivationCheckpointing, GroupsOfASequential) {
  nn::Sequential net{Step(), Step(), Step()};
  const auto call = [&](const torch::Tensor& x) { return net(x); };
  const auto wanted = gradients(net->parameters(), call);
  const auto names = [&](const std::string& strategy) {
    set_activation_checkpointing(net, {.strategy = strategy});
    regions().clear();
    expect_equal(gradients(net->parameters(), call), wanted);
    const auto all = regions();
    EXPECT_EQ(all.size(), 6U);
    return std::vector<std::string>(all.begin(), all.begin() + 3);
  };
  const std::string of = " of a Sequential";
  EXPECT_THAT(names("each"), ElementsAre("child 0" + of, "child 1" + of, "child 2" + of));
  EXPECT_THAT(
      names("group_2"),
      ElementsAre("children 0 to 1" + of, "children 0 to 1" + of, "child 2" + of));
  const std::string all = "children 0 to 2" + of;
  EXPECT_THAT(names("contiguous"), ElementsAre(all, all, all));
  EXPECT_THAT(names("group_7"), ElementsAre(all, all, all));
  regions().clear();
  nn::Sequential plain{Step(), Step()};
  gradients(plain->parameters(), [&](const torch::Tensor& x) {
    return checkpoint_sequential(plain, x, {.strategy = "contiguous"});
  });
  EXPECT_EQ(regions().front(), "children 0 to 1" + of);
}

// A layer's own holder keeps its product; also where autocast makes it of another type, and without
// a bias, where libtorch adds in another place.
TEST(ActivationCheckpointing, SelectiveKeepsProducts) {
  nn::Sequential net{
      Step(), Step(), nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)), Step()};
  const auto call = [&](const torch::Tensor& x) { return net(x); };
  const auto deep = [&](const torch::Tensor& x) { return net(x.expand({2, 3, 4})); };
  for (const bool autocast : {false, true}) {
    const auto found = [&](const auto& how) {
      at::autocast::set_cpu_enabled(autocast);
      const auto result = gradients(net->parameters(), how);
      at::autocast::clear_cache();
      at::autocast::set_cpu_enabled(false);
      return result;
    };
    set_activation_checkpointing(net, {.strategy = "each"});
    const auto wanted = found(call);
    const auto wanted_deep = found(deep);
    set_activation_checkpointing(net, {.strategy = "selective"});
    regions().clear();
    expect_equal(found(call), wanted);
    EXPECT_EQ(regions().size(), 6U);
    expect_equal(found(deep), wanted_deep);
  }
  Step one;
  const auto wanted = gradients(one->parameters(), [&](const torch::Tensor& x) { return one(x); });
  set_activation_checkpointing(one, {.strategy = "selective"});
  expect_equal(
      gradients(one->parameters(), [&](const torch::Tensor& x) { return one(x); }), wanted);
}

// The second run takes no number of the generator, and has the mask of the first all the same.
TEST(ActivationCheckpointing, SelectiveKeepsMasksOfDropout) {
  nn::Sequential net{nn::Linear(4, 4), nn::Dropout(0.5), nn::Dropout(0.0), nn::Linear(4, 4)};
  const auto found = [&] {
    auto result = gradients(
        net->parameters(), [&](const torch::Tensor& x) { return net(x); }, 9);
    result.push_back(torch::rand({1}));
    return result;
  };
  const auto wanted = found();
  set_activation_checkpointing(net, {.preserve_rng_state = false, .strategy = "selective"});
  expect_equal(found(), wanted);
  set_activation_checkpointing(net, {.strategy = "selective"});
  expect_equal(found(), wanted);
}

TEST(ActivationCheckpointing, EvaluationKeepsNothingAnyway) {
  Step net;
  set_activation_checkpointing(net);
  regions().clear();
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(net(torch::ones({2, 4})).requires_grad());
  EXPECT_THAT(regions(), ElementsAre("none"));
}

template <typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ActivationCheckpointing, SaysWhatIsNoStrategyAndWhatIsNoSequential) {
  nn::Sequential net{Step()};
  for (const char* word : {"group_0", "group_", "group_1.5", "group_-1", "all", ""}) {
    EXPECT_THAT(
        error_of([&] { set_activation_checkpointing(net, {.strategy = word}); }),
        HasSubstr(std::string("strategy is '") + word + "'; write \"each\""));
  }
  Step single;
  EXPECT_THAT(
      error_of([&] { set_activation_checkpointing(single, {.strategy = "contiguous"}); }),
      HasSubstr("strategy is for a tessera::nn::Sequential"));
  EXPECT_THAT(
      error_of([&] { set_activation_checkpointing(single, {.pack_args_as_tuple = true}); }),
      HasSubstr("pack_args_as_tuple is for a tessera::nn::Sequential"));
  NoHolderImpl none;
  EXPECT_THAT(
      error_of([&] { set_activation_checkpointing(none); }),
      HasSubstr("is not held by a tessera module holder"));
  torch::nn::Sequential plain(torch::nn::Linear(2, 2));
  EXPECT_THAT(
      error_of([&] { set_activation_checkpointing(plain); }),
      HasSubstr("make it a tessera::nn::Sequential, which takes the same layers"));
}

} // namespace
} // namespace tessera::nn
