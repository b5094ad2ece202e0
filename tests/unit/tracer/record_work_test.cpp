#include "tessera/tracer/record_work.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/tracer/describe.h"

namespace tessera::tracer {
namespace {

using Kind = graph::OperatorWork::Kind;

struct WorkNetImpl : torch::nn::Module {
  WorkNetImpl() {
    first = register_module("first", nn::Linear(4, 6));
    second = register_module("second", nn::Linear(6, 2));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto hidden = torch::gelu(first(x));
    const auto scores = torch::matmul(hidden, hidden.transpose(1, 2));
    return second(torch::dropout(torch::matmul(scores, hidden), 0.5, true));
  }
  nn::Linear first{nullptr};
  nn::Linear second{nullptr};
};
TESSERA_MODULE(WorkNet);

graph::ForwardWork work_of(bool delayed, int batch) {
  const DelayedInitScope scope(delayed);
  WorkNet net;
  const auto x = torch::zeros({batch, 3, 4}, delayed ? torch::kMeta : torch::kCPU);
  return record_work(*net, [&] { net(x); });
}

std::vector<graph::OperatorWork> of_kind(const graph::ForwardWork& work, Kind kind) {
  std::vector<graph::OperatorWork> found;
  for (const auto& one : work) {
    if (one.kind == kind) {
      found.push_back(one);
    }
  }
  return found;
}

void expect_product(
    const graph::OperatorWork& work,
    double count,
    double rows,
    double inner,
    double columns) {
  EXPECT_EQ(work.count, count) << work.name;
  EXPECT_EQ(work.rows, rows) << work.name;
  EXPECT_EQ(work.inner, inner) << work.name;
  EXPECT_EQ(work.columns, columns) << work.name;
}

TEST(RecordWork, CountsProductsByTheirSizes) {
  const auto products = of_kind(work_of(false, 5), Kind::kProduct);
  ASSERT_EQ(products.size(), 4u);
  expect_product(products[0], 1, 15, 4, 6); // first
  expect_product(products[1], 5, 3, 6, 3); // scores
  expect_product(products[2], 5, 3, 3, 6);
  expect_product(products[3], 1, 15, 6, 2); // second
  EXPECT_EQ(products[0].flops(), 2.0 * 15 * 4 * 6);
  // The root runs what its children do not.
  EXPECT_EQ(products[0].module, 1);
  EXPECT_EQ(products[1].module, 0);
  EXPECT_EQ(products[3].module, 2);
}

// The backward of a product reads its factors, that of a function its argument or its result; a sum
// reads nothing. Autograd itself says the same of this forward.
struct KeepingImpl : torch::nn::Module {
  KeepingImpl() {
    linear = register_module("linear", nn::Linear(4, 4));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto sum = linear(x) + 1; // both are the argument of nothing that reads it
    const auto doubled = sum + sum; // read by gelu
    const auto curved = torch::gelu(doubled).view({-1, 4}); // read by the softmax's product
    const auto weights = torch::softmax(curved + curved, -1); // read by itself and the product
    return torch::mm(weights, curved.t()).sum();
  }
  nn::Linear linear{nullptr};
};
TESSERA_MODULE(Keeping);

TEST(RecordWork, SaysWhatLivesUntilTheBackward) {
  for (const bool delayed : {false, true}) {
    const DelayedInitScope scope(delayed);
    Keeping net;
    const auto x = torch::zeros({5, 4}, delayed ? torch::kMeta : torch::kCPU);
    const auto work = record_work(*net, [&] { net(x); });
    std::vector<std::pair<std::string, double>> kept;
    for (const auto& one : work) {
      if (one.kept_bytes > 0) {
        kept.emplace_back(one.name, one.kept_bytes);
      }
    }
    using testing::HasSubstr;
    using testing::Pair;
    EXPECT_THAT(
        kept,
        testing::ElementsAre(
            Pair(HasSubstr("add"), 80.0),
            Pair(HasSubstr("gelu"), 80.0),
            Pair(HasSubstr("softmax"), 80.0)));
  }
}

TEST(RecordWork, MasksAndProbabilitiesAreHeldByTheirOperators) {
  Keeping net; // any module
  const auto x = torch::zeros({5, 4});
  const auto targets = torch::zeros({5}, torch::kLong);
  const auto work =
      record_work(*net, [&] { torch::cross_entropy_loss(torch::dropout(x, 0.5, true), targets); });
  ASSERT_EQ(work.size(), 2U);
  EXPECT_EQ(work[0].kept_bytes, 80); // the mask; its result is read by nobody
  EXPECT_EQ(work[1].kept_bytes, 80);
}

struct FailingImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor /*x*/) {
    throw std::runtime_error("user");
  }
};
TESSERA_MODULE(Failing);

struct CatchingImpl : torch::nn::Module {
  CatchingImpl() {
    failing = register_module("failing", Failing());
  }
  torch::Tensor forward(torch::Tensor x) {
    try {
      return failing(x);
    } catch (const std::runtime_error&) {
      return torch::exp(x);
    }
  }
  Failing failing{nullptr};
};
TESSERA_MODULE(Catching);

TEST(RecordWork, WorkAfterAnErrorIsThatOfTheModuleThatCaughtIt) {
  Catching net;
  const auto functions =
      of_kind(record_work(*net, [&] { net(torch::ones({2})); }), Kind::kFunction);
  ASSERT_EQ(functions.size(), 1u);
  EXPECT_EQ(functions[0].module, 0);
}

TEST(RecordWork, TellsFunctionsAndRandomNumbersApart) {
  const auto work = work_of(false, 5);
  ASSERT_EQ(of_kind(work, Kind::kFunction).size(), 1u);
  EXPECT_EQ(of_kind(work, Kind::kFunction)[0].elements, 90);
  EXPECT_EQ(of_kind(work, Kind::kFunction)[0].bytes, 360);
  ASSERT_EQ(of_kind(work, Kind::kRandom).size(), 1u);
}

TEST(RecordWork, AModelWithoutMemoryGivesTheSame) {
  const auto real = work_of(false, 3);
  const auto delayed = work_of(true, 3);
  ASSERT_EQ(real.size(), delayed.size());
  for (std::size_t i = 0; i < real.size(); ++i) {
    EXPECT_EQ(real[i].name, delayed[i].name);
    EXPECT_EQ(real[i].flops(), delayed[i].flops());
    EXPECT_EQ(real[i].bytes, delayed[i].bytes);
  }
}

TEST(RecordWork, WhatDoesNotCopyIsAView) {
  WorkNet net;
  const auto kinds = [&](bool delayed) {
    const auto x = torch::zeros(
        {2, 3, 4}, torch::dtype(torch::kFloat).device(delayed ? torch::kMeta : torch::kCPU));
    return record_work(*net, [&] {
      x.reshape({6, 4}); // as it lies
      x.transpose(0, 1).reshape({6, 4}); // copies
      x.to(torch::kFloat);
      x.to(torch::kDouble);
    });
  };
  for (const bool delayed : {false, true}) {
    const auto work = kinds(delayed);
    ASSERT_EQ(work.size(), 5u);
    EXPECT_EQ(work[0].kind, Kind::kView);
    EXPECT_EQ(work[2].kind, Kind::kMove) << work[2].name;
    EXPECT_EQ(work[3].kind, Kind::kView) << work[3].name;
    EXPECT_EQ(work[4].kind, Kind::kMove) << work[4].name;
  }
}

TEST(RecordWork, WhatIsMadeOfNothingHasNoBackward) {
  WorkNet net;
  const auto work = record_work(*net, [&] {
    const auto x = torch::empty({2, 3}); // no element is touched
    x.zero_();
    torch::zeros({2, 3});
    x.exp();
  });
  ASSERT_EQ(work.size(), 4u);
  EXPECT_EQ(work[0].kind, Kind::kView);
  EXPECT_EQ(work[1].kind, Kind::kMove);
  EXPECT_EQ(work[2].kind, Kind::kMove);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(work[i].has_adjoint) << work[i].name;
  }
  EXPECT_TRUE(work[3].has_adjoint);
}

TEST(RecordWork, ViewsInsideADerivativeOfItsOwnHaveNoBackward) {
  WorkNet net;
  const auto work = record_work(*net, [&] {
    const auto x = torch::ones({2, 3});
    x.t();
    const nn::OwnDerivativeScope scope;
    x.t();
    x.exp();
  });
  ASSERT_EQ(work.size(), 4u);
  EXPECT_TRUE(work[1].has_adjoint);
  EXPECT_FALSE(work[2].has_adjoint);
  EXPECT_TRUE(work[3].has_adjoint); // the derivative computes it
}

TEST(RecordWork, KnowsTheProductThatACallReturns) {
  WorkNet net;
  const auto work = of_kind(
      record_work(
          *net,
          [&] {
            const auto x = torch::ones({2, 2});
            x.mm(x);
            const recompute::ReturnedCall call(net.get());
            x.mm(x);
            {
              const recompute::ReturnedProduct product;
              x.mm(x);
              const recompute::ReturnedCall neither(nullptr);
              const recompute::ReturnedProduct of_neither;
              x.mm(x);
            }
            x.mm(x);
          }),
      Kind::kProduct);
  ASSERT_EQ(work.size(), 5u);
  for (std::size_t i = 0; i < work.size(); ++i) {
    EXPECT_EQ(work[i].returned, i == 2) << i;
  }
}

TEST(RecordWork, ALossGoesByWhatItReads) {
  WorkNet net;
  const auto logits = torch::zeros({5, 7});
  const auto targets = torch::zeros({5}, torch::kLong);
  const auto work = record_work(*net, [&] { at::cross_entropy_loss(logits, targets); });
  ASSERT_EQ(work.size(), 1u);
  EXPECT_EQ(work[0].kind, Kind::kFunction);
  EXPECT_EQ(work[0].elements, 35);
  EXPECT_EQ(work[0].bytes, 140);
}

TEST(RecordWork, TellsTheFormsOfGeluApart) {
  WorkNet net;
  const auto work = record_work(*net, [&] {
    at::gelu(torch::zeros({2}));
    at::gelu(torch::zeros({2}), "tanh");
  });
  const auto functions = of_kind(work, Kind::kFunction);
  ASSERT_EQ(functions.size(), 2u);
  EXPECT_EQ(functions[0].name, "aten::gelu");
  EXPECT_EQ(functions[1].name, "aten::gelu.tanh");
}

TEST(RecordWork, AnyBatchFollowsFromOneAndTwoSamples) {
  const auto seven = graph::work_of_batch(work_of(true, 1), work_of(true, 2), 7);
  const auto real = work_of(true, 7);
  ASSERT_EQ(seven.size(), real.size());
  for (std::size_t i = 0; i < real.size(); ++i) {
    EXPECT_DOUBLE_EQ(seven[i].flops(), real[i].flops()) << real[i].name;
    EXPECT_DOUBLE_EQ(seven[i].elements, real[i].elements) << real[i].name;
  }
  // Reshaped without a copy only while there is one sample.
  graph::ForwardWork one(1);
  one[0].kind = Kind::kView;
  const graph::ForwardWork two(1);
  EXPECT_EQ(graph::work_of_batch(one, two, 1)[0].kind, Kind::kView);
  EXPECT_EQ(graph::work_of_batch(one, two, 2)[0].kind, Kind::kMove);
  auto other = work_of(true, 2);
  other.pop_back();
  EXPECT_THROW(graph::work_of_batch(work_of(true, 1), other, 7), PlanError);
}

TEST(RecordWork, WhatDistributedModulesLeaveOutIsWrittenDown) {
  WorkNet net;
  const auto work = record_work(*net, [&] {
    nn::tell_skipped("all_gather", 2, torch::zeros({3}));
    nn::SkippedWork product;
    product.operation = "product";
    product.count = 2;
    product.rows = 3;
    product.inner = 4;
    product.columns = 5;
    nn::tell_skipped(product);
  });
  const auto collectives = of_kind(work, Kind::kCollective);
  ASSERT_EQ(collectives.size(), 1u);
  EXPECT_EQ(collectives[0].name, "all_gather");
  EXPECT_EQ(collectives[0].ranks, 2);
  EXPECT_EQ(collectives[0].bytes, 12);
  const auto products = of_kind(work, Kind::kProduct);
  ASSERT_EQ(products.size(), 1u);
  EXPECT_EQ(products[0].flops(), 2 * 2 * 3 * 4 * 5);
  // Nobody listens any more.
  nn::tell_skipped("all_gather", 2, torch::zeros({3}));
}

} // namespace
} // namespace tessera::tracer
