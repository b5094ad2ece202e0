#include "tessera/autograd/weight_gradient.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// How many parts came to a parameter's gradient, and how many of them through
/// the accumulator (the others were added before).
struct Parts {
  int all = 0;
  int handed_over = 0;
};

class CountParts : public torch::autograd::FunctionPostHook {
 public:
  explicit CountParts(Parts* parts) : parts_(parts) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& inputs) override {
    ++parts_->all;
    parts_->handed_over += inputs.at(0).defined() ? 1 : 0;
    return outputs;
  }

 private:
  Parts* parts_;
};

std::shared_ptr<torch::autograd::Node> count(const at::Tensor& parameter, Parts& parts) {
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  accumulator->add_post_hook(std::make_unique<CountParts>(&parts));
  return accumulator;
}

/// Three microbatches, forward within a scope or without.
template <typename Loss>
void train(bool in_place, const Loss& loss) {
  for (int i = 0; i < 3; ++i) {
    at::Tensor value;
    if (in_place) {
      const WeightGradientScope scope;
      value = loss(i);
    } else {
      value = loss(i);
    }
    std::optional<WeightGradientPass> pass;
    if (in_place) {
      pass.emplace(std::vector<at::Tensor>{value});
    }
    value.backward();
  }
}

at::Tensor rows(at::IntArrayRef sizes, int seed) {
  torch::manual_seed(100 + seed);
  return torch::randn(sizes);
}

TEST(WeightGradient, LinearLayersGiveLibtorchsGradients) {
  for (const bool bias : {true, false}) {
    for (const bool three_dimensions : {true, false}) {
      SCOPED_TRACE(str("bias ", bias, ", 3-D ", three_dimensions));
      torch::manual_seed(3);
      torch::nn::Linear plain(torch::nn::LinearOptions(5, 7).bias(bias));
      torch::nn::Linear ours(torch::nn::LinearOptions(5, 7).bias(bias));
      {
        const torch::NoGradGuard no_grad;
        ours->weight.copy_(plain->weight);
        if (bias) {
          ours->bias.copy_(plain->bias);
        }
      }
      const std::vector<std::int64_t> sizes =
          three_dimensions ? std::vector<std::int64_t>{2, 3, 5} : std::vector<std::int64_t>{6, 5};
      Parts parts;
      const auto keep = count(ours->weight, parts);
      std::vector<at::Tensor> inputs;
      const auto loss_of = [&](torch::nn::Linear& linear) {
        return [&](int i) {
          inputs.push_back(rows(sizes, i).requires_grad_());
          return linear(inputs.back()).pow(2).sum();
        };
      };
      train(false, loss_of(plain));
      train(true, loss_of(ours));
      EXPECT_TRUE(torch::allclose(ours->weight.grad(), plain->weight.grad(), 1e-5, 1e-6));
      if (bias) {
        EXPECT_TRUE(torch::allclose(ours->bias.grad(), plain->bias.grad(), 1e-5, 1e-6));
      }
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(torch::allclose(inputs[i].grad(), inputs[3 + i].grad(), 1e-5, 1e-6));
      }
      // Whoever counts additions still sees all three.
      EXPECT_EQ(parts.all, 3);
      EXPECT_EQ(parts.handed_over, 0);
    }
  }
}

TEST(WeightGradient, ProductsWithStoredTransposes) {
  const auto made = [] { return rows({4, 6}, 50).requires_grad_(); };
  at::Tensor plain = made();
  at::Tensor ours = made();
  Parts parts;
  const auto keep = count(ours, parts);
  const auto loss_of = [](const at::Tensor& weight) {
    return [&weight](int i) { return rows({3, 4}, i).mm(weight).pow(2).sum(); };
  };
  train(false, loss_of(plain));
  train(true, loss_of(ours));
  EXPECT_TRUE(torch::allclose(ours.grad(), plain.grad(), 1e-5, 1e-6));
  EXPECT_EQ(parts.handed_over, 0);
}

TEST(WeightGradient, LookUpsAndATiedHead) {
  for (const auto& both :
       std::vector<std::pair<std::int64_t, bool>>{{-1, false}, {2, false}, {-1, true}, {2, true}}) {
    const std::int64_t padding = both.first;
    const bool tied = both.second;
    SCOPED_TRACE(str("padding ", padding, ", tied ", tied));
    const auto made = [] { return rows({9, 4}, 60).requires_grad_(); };
    at::Tensor plain = made();
    at::Tensor ours = made();
    Parts parts;
    const auto keep = count(ours, parts);
    const auto loss_of = [&](const at::Tensor& table) {
      return [&table, padding, tied](int i) {
        const at::Tensor ids = torch::tensor({{1, 3, 3}, {8, 0, 1 + i}});
        const at::Tensor x = at::embedding(table, ids, padding).tanh();
        return (tied ? x.matmul(table.t()) : x).pow(2).sum();
      };
    };
    train(false, loss_of(plain));
    train(true, loss_of(ours));
    EXPECT_TRUE(torch::allclose(ours.grad(), plain.grad(), 1e-5, 1e-6));
    // Of two nodes that add to one parameter the engine adds the parts first.
    EXPECT_EQ(parts.all, 3);
    EXPECT_EQ(parts.handed_over, tied ? 3 : 0);
  }
}

TEST(WeightGradient, PartsThatAreAskedForAreGiven) {
  at::Tensor weight = rows({4, 6}, 70).requires_grad_();
  weight.mutable_grad() = torch::ones({4, 6});
  const at::Tensor x = rows({3, 6}, 1).requires_grad_();
  const auto product = [&] {
    const WeightGradientScope scope;
    return x.mm(weight.t()).pow(2).sum();
  };
  const at::Tensor expected = 2 * x.detach().mm(weight.detach().t()).t().mm(x.detach());

  const auto asked = [&] {
    const at::Tensor loss = product();
    const WeightGradientPass pass({loss});
    return torch::autograd::grad({loss}, {weight});
  }();
  EXPECT_TRUE(torch::allclose(asked[0], expected, 1e-5, 1e-6));
  EXPECT_TRUE(torch::equal(weight.grad(), torch::ones({4, 6})));

  // A gradient of a gradient: d/dx of |dL/dW|^2, against libtorch's.
  const auto second = [&](const at::Tensor& loss) {
    const auto first = torch::autograd::grad({loss}, {weight}, {}, {}, true);
    return torch::autograd::grad({first[0].pow(2).sum()}, {x})[0];
  };
  EXPECT_TRUE(
      torch::allclose(second(product()), second(x.mm(weight.t()).pow(2).sum()), 1e-4, 1e-4));

  at::Tensor seen;
  weight.register_hook([&](const at::Tensor& gradient) { seen = gradient; });
  const at::Tensor loss = product();
  const WeightGradientPass pass({loss});
  loss.backward();
  ASSERT_TRUE(seen.defined());
  EXPECT_TRUE(torch::allclose(seen, expected, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::ones({4, 6}) + expected, 1e-5, 1e-6));
}

TEST(WeightGradient, OtherProductsAreLibtorchs) {
  const at::Tensor weight = rows({4, 6}, 80).requires_grad_();
  const at::Tensor x = rows({3, 6}, 2);
  EXPECT_EQ(x.mm(weight.t()).grad_fn()->name(), "MmBackward0");
  const WeightGradientScope scope;
  EXPECT_NE(x.mm(weight.t()).grad_fn()->name(), "MmBackward0");
  // Computed matrices, parts of a parameter, frozen parameters, no gradients.
  EXPECT_EQ(x.mm((weight * 2).t()).grad_fn()->name(), "MmBackward0");
  EXPECT_EQ(x.narrow(1, 0, 3).mm(weight.narrow(1, 0, 3).t()).grad_fn()->name(), "MmBackward0");
  const at::Tensor frozen = rows({4, 6}, 80);
  EXPECT_EQ(x.mm(frozen.t()).grad_fn(), nullptr);
  const at::Tensor input = rows({3, 6}, 2).requires_grad_();
  EXPECT_EQ(input.mm(frozen.t()).grad_fn()->name(), "MmBackward0");
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(x.mm(weight.t()).grad_fn(), nullptr);
}

// What a run finds at the start of a step must not show in its sums: a resumed
// run has no gradients yet, the uninterrupted one has zeros.
/// A node like the one of a call to another rank.
struct Request : torch::autograd::Function<Request> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      torch::autograd::variable_list gradients) {
    if (auto* pass = WeightGradientPass::current()) {
      pass->requested();
    }
    return gradients;
  }
  static bool is(const torch::autograd::Node& node) {
    return node.name().find("Request") != std::string::npos;
  }
};

struct TwoLinears {
  TwoLinears() : before(4, 4), after(4, 4), x(rows({3, 4}, 1)) {
    x.requires_grad_();
  }
  /// before -> a call to another rank -> after
  at::Tensor loss() {
    const WeightGradientScope scope;
    return after(Request::apply(before(x))).pow(2).sum();
  }
  torch::nn::Linear before;
  torch::nn::Linear after;
  at::Tensor x;
};

TEST(WeightGradient, PutOffUntilWhoWaitsIsServed) {
  TwoLinears net;
  net.loss().backward();
  const at::Tensor of_before = net.before->weight.grad().clone();
  const at::Tensor of_after = net.after->weight.grad().clone();
  const at::Tensor of_x = net.x.grad().clone();
  for (const bool end : {false, true}) {
    SCOPED_TRACE(end ? "the end is awaited" : "a request is ahead");
    for (at::Tensor tensor : {net.before->weight, net.after->weight, net.x}) {
      tensor.mutable_grad() = at::Tensor();
    }
    int additions = 0;
    auto accumulator = torch::autograd::impl::grad_accumulator(net.after->weight);
    const auto hook = accumulator->add_post_hook(
        std::make_unique<AdditionHook>(accumulator.get(), [&] { ++additions; }));
    const at::Tensor loss = net.loss();
    WeightGradientPass pass({loss}, {end, Request::is});
    loss.backward();
    EXPECT_TRUE(torch::equal(net.x.grad(), of_x));
    EXPECT_FALSE(net.after->weight.grad().defined());
    EXPECT_EQ(net.before->weight.grad().defined(), !end); // nobody waits now
    EXPECT_EQ(additions, 0);
    pass.catch_up();
    EXPECT_EQ(additions, 1);
    EXPECT_TRUE(torch::allclose(net.after->weight.grad(), of_after));
    EXPECT_TRUE(torch::allclose(net.before->weight.grad(), of_before));
    pass.catch_up();
    EXPECT_EQ(additions, 1);
    accumulator->del_post_hook(hook);
  }
}

TEST(WeightGradient, NotPutOffWhereAnotherHookHears) {
  TwoLinears net;
  Parts parts;
  const auto keep = count(net.after->weight, parts);
  const at::Tensor loss = net.loss();
  WeightGradientPass pass({loss}, {true, nullptr});
  loss.backward();
  EXPECT_EQ(parts.all, 1);
  EXPECT_TRUE(net.after->weight.grad().defined());
  EXPECT_FALSE(net.before->weight.grad().defined());
  pass.catch_up();
  EXPECT_TRUE(net.before->weight.grad().defined());
}

TEST(WeightGradient, AFailedPassDropsWhatItPutOff) {
  TwoLinears net;
  {
    const at::Tensor loss = net.loss();
    const WeightGradientPass pass({loss}, {true, nullptr});
    loss.backward();
  }
  EXPECT_EQ(WeightGradientPass::current(), nullptr);
  EXPECT_FALSE(net.after->weight.grad().defined());
}

TEST(WeightGradient, ZerosAndNoGradientGiveTheSameBits) {
  const auto gradient_of = [](bool zeros) {
    at::Tensor table = rows({9, 4}, 65).requires_grad_();
    if (zeros) {
      table.mutable_grad() = torch::zeros({9, 4});
    }
    train(true, [&](int i) {
      const at::Tensor ids = torch::tensor({{1, 2, 2}, {8, 0, 1 + i}});
      return at::embedding(table, ids).tanh().matmul(table.t()).pow(3).sum();
    });
    return table.grad();
  };
  EXPECT_TRUE(torch::equal(gradient_of(true), gradient_of(false)));
}

// A node whose result was not used on gets no gradient; neither may its weight.
TEST(WeightGradient, NothingArrivesNothingIsMade) {
  struct Stop : torch::autograd::Function<Stop> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext*,
        torch::autograd::variable_list) {
      return {at::Tensor()};
    }
  };
  const at::Tensor weight = rows({4, 6}, 66).requires_grad_();
  const at::Tensor table = rows({4, 6}, 67).requires_grad_();
  train(true, [&](int i) {
    const at::Tensor x = at::embedding(table, torch::tensor({i, 0}));
    return Stop::apply(x.mm(weight.t())).sum() + Stop::apply(x).sum();
  });
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_FALSE(table.grad().defined());
}

TEST(WeightGradient, HalfPrecisionAndNoGradient) {
  at::Tensor weight = rows({4, 6}, 90).to(at::kBFloat16).requires_grad_();
  Parts parts;
  const auto keep = count(weight, parts);
  train(true, [&](int i) { return rows({3, 6}, i).to(at::kBFloat16).mm(weight.t()).sum(); });
  EXPECT_EQ(parts.handed_over, 0);
  at::Tensor expected = torch::zeros({6});
  for (int i = 0; i < 3; ++i) {
    expected += rows({3, 6}, i).sum(0);
  }
  EXPECT_TRUE(torch::allclose(weight.grad().to(at::kFloat), expected.expand({4, 6}), 5e-2, 5e-2));
  weight.mutable_grad() = at::Tensor();
  EXPECT_FALSE(addable_gradient(weight).defined());
}

} // namespace
} // namespace tessera
