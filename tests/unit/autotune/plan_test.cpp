#include "tessera/autotune/plan.h"

#include <tuple>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/planner/nothing_fits.h"

namespace tessera {
namespace {

using testing::HasSubstr;

struct LayerImpl : torch::nn::Module {
  LayerImpl() : linear(register_module("linear", nn::Linear(64, 64))) {}
  at::Tensor forward(at::Tensor x) {
    return at::tanh(linear(x));
  }
  nn::Linear linear;
};
TESSERA_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    body = register_module("body", nn::Sequential(Layer(), Layer(), Layer()));
    head = register_module("head", nn::Linear(64, 10));
  }
  at::Tensor forward(at::Tensor x) {
    return head(body(x));
  }
  nn::Sequential body{nullptr};
  nn::Linear head{nullptr};
};
TESSERA_MODULE(Net);

at::Tensor loss_of(Net& net, const at::Tensor& x, const at::Tensor& classes) {
  return at::cross_entropy_loss(net(x), classes);
}

std::tuple<at::Tensor, at::Tensor> batch_of(std::int64_t samples) {
  return {at::zeros({samples, 64}), at::zeros({samples}, at::kLong)};
}

Cluster cluster_of(int devices, double memory_bytes = 16e9) {
  Cluster cluster;
  cluster.name = "test";
  cluster.kinds = {{.name = "v100", .memory_bytes = memory_bytes, .memory_bytes_per_s = 9e11}};
  cluster.nodes = {
      {.kind = 0, .count = devices, .intra_bytes_per_s = 2e10, .inter_bytes_per_s = 1e9}};
  return cluster;
}

Net build() {
  return Net();
}

TEST(Plan, LayersOfASequentialCanBePlaced) {
  const Planned planned = plan(build, loss_of, batch_of(8), cluster_of(2));
  ASSERT_EQ(planned.model.layers.size(), 4U);
  EXPECT_EQ(planned.model.layers[0].name, "");
  EXPECT_EQ(planned.model.layers[0].parameters, 64 * 10 + 10);
  EXPECT_EQ(planned.model.layers[1].name, "body.0");
  EXPECT_EQ(planned.model.layers[3].parameters, 64 * 64 + 64);
  EXPECT_EQ(planned.model.global_batch_size, 8);
  EXPECT_GT(planned.step_seconds(), 0);
  EXPECT_THAT(planned.explanation(), HasSubstr("the first of them:\npp "));
}

TEST(Plan, TheConfigurationFitsTheClusterAndKeepsOtherKeys) {
  PlanOptions options;
  options.search.keep = 100;
  const Planned planned = plan(build, loss_of, batch_of(8), cluster_of(4), options);
  config::Config base;
  base.seed = 11;
  bool pipeline = false;
  for (const planner::Candidate& candidate : planned.found.best) {
    Planned one = planned;
    one.found.best = {candidate};
    const config::Config config = one.config(base);
    EXPECT_EQ(config.seed, 11);
    config::check_world(config, 4);
    pipeline = pipeline || config.pipeline_parallel_degree > 1;
  }
  EXPECT_TRUE(pipeline);
}

TEST(Plan, AnyHolderOrPointerIsAModel) {
  const auto seconds = [](auto model) {
    return plan(
               model,
               [](auto& net, const at::Tensor& x, const at::Tensor& classes) {
                 return at::cross_entropy_loss(net->forward(x), classes);
               },
               batch_of(8),
               cluster_of(2))
        .step_seconds();
  };
  const auto plain = [] {
    return torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::Linear(64, 10));
  };
  EXPECT_GT(seconds(plain), 0);
  EXPECT_GT(seconds([] { return std::make_shared<NetImpl>(); }), 0);
}

TEST(Plan, IsTheSameEachTimeAndLeavesRandomNumbersAlone) {
  torch::manual_seed(5);
  const double next = at::rand({1}).item<double>();
  torch::manual_seed(5);
  const Planned first = plan(build, loss_of, batch_of(8), cluster_of(2));
  EXPECT_EQ(at::rand({1}).item<double>(), next);
  const Planned second = plan(build, loss_of, batch_of(8), cluster_of(2));
  EXPECT_EQ(first.step_seconds(), second.step_seconds());
  EXPECT_EQ(first.explanation(), second.explanation());
}

TEST(Plan, AFewRowsStandForABatch) {
  const Planned planned = plan(build, loss_of, batch_of(1), cluster_of(1));
  EXPECT_EQ(planned.model.global_batch_size, 1);
}

TEST(Plan, SaysWhatIsWrong) {
  const auto message = [](const auto& batch, const Cluster& cluster) -> std::string {
    try {
      plan(build, loss_of, batch, cluster);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(
      message(std::make_tuple(at::zeros({8, 64}), at::zeros({4}, at::kLong)), cluster_of(2)),
      HasSubstr("tensor 1 of the batch has 4 rows, expected 8"));
  EXPECT_THAT(
      message(std::make_tuple(at::zeros({}), at::zeros({4}, at::kLong)), cluster_of(2)),
      HasSubstr("tensor 0 of the batch has 0 rows"));
  Cluster unknown = cluster_of(2);
  unknown.kinds[0].name = "abacus";
  EXPECT_THAT(message(batch_of(8), unknown), HasSubstr("\"abacus\" has no measured speed"));
  EXPECT_THROW(plan(build, loss_of, batch_of(8), cluster_of(2, 1e3)), planner::NothingFits);
}

} // namespace
} // namespace tessera
