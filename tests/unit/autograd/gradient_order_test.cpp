#include "tessera/autograd/gradient_order.h"

#include <algorithm>
#include <optional>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/autograd/weight_gradient.h"

namespace tessera {
namespace {

constexpr int kMicrobatches = 4;

/// A product in place, a look-up in place, a tied weight and gradients that the
/// engine adds.
struct Net {
  Net() {
    torch::manual_seed(3);
    for (at::Tensor* tensor : {&table, &weight, &tied, &scale}) {
      *tensor = torch::randn({6, 6}).requires_grad_();
    }
  }
  at::Tensor loss(int microbatch) const {
    torch::manual_seed(50 + microbatch);
    const WeightGradientScope in_place;
    at::Tensor x = at::embedding(table, torch::randint(0, 6, {5}));
    x = torch::tanh(x.mm(tied) * scale.sum(0));
    return (torch::tanh(x.mm(weight)).mm(tied)).pow(2).sum();
  }
  std::vector<at::Tensor> parameters() const {
    return {table, weight, tied, scale};
  }
  at::Tensor table, weight, tied, scale;
};

struct Waiting {
  at::Tensor loss;
  GradientTargets targets;
  GradientOrder::GraphPtr graph;
};

Waiting forward(const Net& net, GradientOrder& order, int microbatch) {
  Waiting made;
  made.loss = net.loss(microbatch);
  made.targets = targets_below({made.loss}, nullptr);
  made.graph = order.expect(microbatch, made.targets);
  return made;
}

void backward(GradientOrder& order, Waiting& waiting) {
  WeightGradientPass pass(waiting.targets, {true, nullptr}, order, waiting.graph);
  waiting.loss.backward();
  pass.catch_up();
  order.ended(*waiting.graph);
}

std::vector<int> in_turn() {
  return {0, 1, 2, 3};
}

/// The gradients when backwards come in this order; `again`: of which a second
/// one comes at the end of the first.
std::vector<at::Tensor>
gradients(const std::vector<int>& arrivals, bool ordered, std::optional<int> again = {}) {
  const Net net;
  GradientOrder order;
  order.begin(net.parameters(), in_turn());
  std::vector<Waiting> waiting;
  for (int i = 0; i < kMicrobatches; ++i) {
    waiting.push_back(forward(net, order, i));
  }
  for (const int i : arrivals) {
    if (!ordered) {
      const WeightGradientPass pass({waiting[i].loss});
      waiting[i].loss.backward();
      continue;
    }
    order.started(i);
    backward(order, waiting[i]);
    if (again == i) {
      Waiting second = forward(net, order, i);
      backward(order, second);
    }
  }
  if (ordered) {
    order.finish();
  }
  std::vector<at::Tensor> list;
  for (const at::Tensor& parameter : net.parameters()) {
    list.push_back(parameter.grad());
  }
  return list;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
    return torch::equal(x, y);
  });
}

TEST(GradientOrder, EveryOrderOfArrivalGivesTheSameBits) {
  const auto wanted = gradients(in_turn(), true);
  EXPECT_TRUE(same_bits(wanted, gradients(in_turn(), false)));
  bool differs = false;
  std::vector<int> arrivals = in_turn();
  while (std::next_permutation(arrivals.begin(), arrivals.end())) {
    EXPECT_TRUE(same_bits(wanted, gradients(arrivals, true)));
    differs = differs || !same_bits(wanted, gradients(arrivals, false));
  }
  EXPECT_TRUE(differs) << "these numbers add up to the same bits in every order";
}

TEST(GradientOrder, ASecondBackwardOfAMicrobatchComesLast) {
  const auto wanted = gradients(in_turn(), true, 1);
  EXPECT_FALSE(same_bits(wanted, gradients(in_turn(), true)));
  std::vector<int> arrivals = in_turn();
  while (std::next_permutation(arrivals.begin(), arrivals.end())) {
    EXPECT_TRUE(same_bits(wanted, gradients(arrivals, true, 1)));
  }
}

TEST(GradientOrder, WhatComesEarlyIsKeptUntilItsTurn) {
  const Net net;
  GradientOrder order;
  order.begin(net.parameters(), {0, 1});
  int complete = 0;
  int added = 0;
  const auto accumulator = torch::autograd::impl::grad_accumulator(net.weight);
  const auto hook = accumulator->add_post_hook(std::make_unique<AdditionHook>(
      accumulator.get(),
      [&] { ++added; },
      std::function<at::Tensor()>(),
      AdditionHook::OnOrder{[&] { ++complete; }, {}}));
  Waiting first = forward(net, order, 0);
  Waiting second = forward(net, order, 1);
  order.started(1);
  backward(order, second);
  for (const at::Tensor& parameter : net.parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(added, 0);
  order.started(0);
  backward(order, first);
  for (const at::Tensor& parameter : net.parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
  }
  EXPECT_EQ(added, 2);
  EXPECT_EQ(complete, 1);
  accumulator->del_post_hook(hook);
}

// A script reads the gradient of what it has made for one microbatch right after its backward.
TEST(GradientOrder, ALeafOfOneMicrobatchHasItsGradientAtOnce) {
  for (const bool all_forwards_first : {false, true}) {
    const Net net;
    GradientOrder order;
    order.begin(net.parameters(), in_turn());
    std::vector<at::Tensor> leaves;
    std::vector<Waiting> waiting;
    const auto run_forward = [&](int i) {
      const at::Tensor leaf = leaves.emplace_back(torch::ones({6, 6}).requires_grad_());
      Waiting& made = waiting.emplace_back();
      made.loss = (net.scale * leaf).sum();
      made.targets = targets_below({made.loss}, nullptr);
      made.graph = order.expect(i, made.targets);
    };
    for (int i = 0; all_forwards_first && i < kMicrobatches; ++i) {
      run_forward(i);
    }
    for (int i = 0; i < kMicrobatches; ++i) {
      if (!all_forwards_first) {
        run_forward(i);
      }
      order.started(i);
      backward(order, waiting[i]);
      ASSERT_TRUE(leaves[i].grad().defined()) << "microbatch " << i << ", " << all_forwards_first;
      EXPECT_TRUE(leaves[i].grad().equal(net.scale)) << "microbatch " << i;
    }
    order.finish();
    EXPECT_TRUE(net.scale.grad().equal(torch::full({6, 6}, 1.0F * kMicrobatches)));
  }
}

// A graph whose backward never comes holds up later microbatches to the end.
TEST(GradientOrder, FinishAddsWhatWaitsForABackwardThatNeverCame) {
  const Net net;
  GradientOrder order;
  order.begin(net.parameters(), {0, 1});
  const Waiting never = forward(net, order, 0);
  Waiting other = forward(net, order, 1);
  order.started(0);
  order.started(1);
  backward(order, other);
  EXPECT_FALSE(net.weight.grad().defined());
  order.finish();
  EXPECT_TRUE(net.weight.grad().defined());
}

// Steps that fail leave nothing behind.
TEST(GradientOrder, ANewStepDropsWhatAFailedOneKept) {
  const Net net;
  GradientOrder order;
  order.begin(net.parameters(), {0, 1});
  const Waiting never = forward(net, order, 0);
  Waiting other = forward(net, order, 1);
  order.started(1);
  backward(order, other);
  order.begin(net.parameters(), {0, 1});
  order.finish();
  EXPECT_FALSE(net.weight.grad().defined());
}

} // namespace
} // namespace tessera
