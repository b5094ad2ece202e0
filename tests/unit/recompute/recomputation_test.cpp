#include "tessera/recompute/recomputation.h"

#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/autograd/gradient_order.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/autograd/weight_gradient_pass.h"
#include "tessera/base/error.h"
#include "tessera/recompute/before_region.h"
#include "tessera/tensor/value.h"

namespace tessera::recompute {
namespace {

using ::testing::HasSubstr;

/// A product, a dropout and a norm; counts its runs.
struct Part {
  Part() {
    torch::manual_seed(3);
    weight = torch::randn({6, 6}).requires_grad_();
    mean = torch::zeros({6});
  }
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    at::Tensor y = torch::dropout(torch::tanh(x.mm(weight)), 0.5, true);
    y = torch::batch_norm(y, {}, {}, norm_mean, norm_var, true, 0.1, 1e-5, false);
    const at::NoGradGuard no_grad;
    mean.mul_(0.9).add_(y.detach().pow(2).mean(0), 0.1);
    return y;
  }
  Region region() {
    Region region;
    region.name = "module 'part'";
    region.buffers = {mean, norm_mean, norm_var};
    region.run = [this](const c10::IValue& args) {
      return pack(forward(unpack<std::tuple<at::Tensor>>(args)));
    };
    return region;
  }
  at::Tensor forward(const std::tuple<at::Tensor>& args) {
    return forward(std::get<0>(args));
  }
  at::Tensor weight;
  at::Tensor mean; // changed by operators that bump its version
  at::Tensor norm_mean = torch::zeros({6}), norm_var = torch::ones({6}); // and by one that does not
  int runs = 0;
};

at::Tensor called(Part& part, Region region, const at::Tensor& x) {
  (void)part;
  return unpack<at::Tensor>(run(std::move(region), pack(std::tuple<at::Tensor>(x))));
}

at::Tensor rows(bool requires_grad) {
  torch::manual_seed(4);
  return torch::randn({5, 6}).requires_grad_(requires_grad);
}

template <typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Recompute, EqualsTheCallWithoutItToTheBit) {
  for (const bool of_input : {true, false}) {
    Part kept;
    Part part;
    const at::Tensor x = rows(of_input);
    const at::Tensor again = rows(of_input);
    torch::manual_seed(9);
    const at::Tensor wanted = kept.forward(x);
    const at::Tensor after_wanted = torch::rand({2});
    wanted.pow(2).sum().backward();
    torch::manual_seed(9);
    const at::Tensor got = called(part, part.region(), again);
    EXPECT_TRUE(torch::rand({2}).equal(after_wanted));
    EXPECT_TRUE(got.equal(wanted));
    EXPECT_EQ(part.runs, 1);
    torch::manual_seed(11);
    const at::Tensor next = torch::rand({2});
    torch::manual_seed(11);
    const auto version = part.mean._version();
    got.pow(2).sum().backward();
    EXPECT_EQ(part.runs, 2);
    EXPECT_EQ(part.mean._version(), version);
    EXPECT_TRUE(torch::rand({2}).equal(next)) << "the backward drew from the script's stream";
    EXPECT_TRUE(part.weight.grad().equal(kept.weight.grad()));
    EXPECT_TRUE(part.mean.equal(kept.mean)) << "the statistics moved twice";
    EXPECT_TRUE(part.norm_mean.equal(kept.norm_mean));
    EXPECT_TRUE(part.norm_var.equal(kept.norm_var));
    if (of_input) {
      EXPECT_TRUE(again.grad().equal(x.grad()));
    }
  }
}

TEST(Recompute, WithoutTheRandomStateTheSecondRunDrawsAnew) {
  Part kept;
  Part part;
  torch::manual_seed(9);
  kept.forward(rows(false)).sum().backward();
  torch::manual_seed(9);
  Region region = part.region();
  region.preserve_rng_state = false;
  called(part, std::move(region), rows(false)).sum().backward();
  EXPECT_FALSE(part.weight.grad().equal(kept.weight.grad()));
}

TEST(Recompute, IsAPlainCallWhereNothingIsKept) {
  Part part;
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(called(part, part.region(), rows(true)).requires_grad());
  }
  Region frozen = part.region();
  frozen.trains = false;
  part.weight.requires_grad_(false);
  EXPECT_FALSE(called(part, std::move(frozen), rows(false)).requires_grad());
  EXPECT_EQ(part.runs, 2);
}

TEST(Recompute, ARegionInsideOfARegionRunsOnceMoreOnly) {
  Part inner;
  Region outer;
  outer.name = "outer";
  outer.run = [&](const c10::IValue& args) {
    EXPECT_EQ(*inside(), "outer");
    return run(inner.region(), args);
  };
  EXPECT_EQ(inside(), nullptr);
  called(inner, std::move(outer), rows(true)).sum().backward();
  EXPECT_EQ(inside(), nullptr);
  EXPECT_EQ(inner.runs, 2);
  EXPECT_TRUE(inner.weight.grad().defined());
}

// Values of any form: lists, numbers, tensors of no gradient, one tensor twice.
TEST(Recompute, PassesValuesOfEveryForm) {
  using Args = std::tuple<std::vector<at::Tensor>, double, at::Tensor>;
  const auto forward = [](const Args& args) {
    const auto& [list, factor, ids] = args;
    const at::Tensor sum = list[0] + factor * list[1];
    return std::tuple(std::vector{sum, ids.clone()}, sum * 2);
  };
  const auto results = [&](bool recomputed) {
    const at::Tensor a = rows(true);
    const at::Tensor ids = torch::arange(3);
    Region region;
    region.name = "values";
    region.run = [&](const c10::IValue& args) { return pack(forward(unpack<Args>(args))); };
    const c10::IValue args = pack(Args({a, a}, 3.0, ids));
    using Result = std::tuple<std::vector<at::Tensor>, at::Tensor>;
    const auto [list, last] =
        recomputed ? unpack<Result>(run(std::move(region), args)) : forward(unpack<Args>(args));
    EXPECT_EQ(list[1].scalar_type(), at::kLong);
    (list[0].sum() + last.pow(2).sum()).backward();
    return a.grad();
  };
  EXPECT_TRUE(results(true).equal(results(false)));
}

TEST(Recompute, GradientsOfChosenInputsAddToNoParameter) {
  Part part;
  const at::Tensor x = rows(true);
  const at::Tensor y = called(part, part.region(), x);
  const auto gradients = torch::autograd::grad({y.sum()}, {x});
  EXPECT_TRUE(gradients[0].defined());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(part.weight.grad().defined());
}

TEST(Recompute, APassOfTheLibraryAddsInPlace) {
  Part kept;
  Part part;
  const auto train = [](Part& of, bool recomputed) {
    const WeightGradientScope in_place;
    for (int i = 0; i < 2; ++i) { // adds to what is there
      torch::manual_seed(20 + i);
      const at::Tensor y =
          recomputed ? called(of, of.region(), rows(false)) : of.forward(rows(false));
      const at::Tensor loss = y.sum();
      const WeightGradientPass pass({loss});
      loss.backward();
    }
  };
  train(kept, false);
  train(part, true);
  EXPECT_TRUE(part.weight.grad().equal(kept.weight.grad()));
}

TEST(Recompute, AnOrderAddsThePartsOfARegionInTheTurnOfItsMicrobatch) {
  std::vector<at::Tensor> sums;
  for (const bool announced : {true, false}) {
    Part part;
    GradientOrder order;
    order.begin({part.weight}, {0, 1});
    const WeightGradientScope in_place;
    std::vector<at::Tensor> losses;
    std::vector<GradientTargets> targets;
    std::vector<GradientOrder::GraphPtr> graphs;
    for (int i = 0; i < 2; ++i) {
      Region region = part.region();
      if (announced) {
        region.parameters = {part.weight};
      }
      torch::manual_seed(30 + i);
      losses.push_back(called(part, std::move(region), rows(true)).sum());
      targets.push_back(targets_below({losses[i]}, nullptr));
      graphs.push_back(order.expect(i, targets[i]));
    }
    for (const int i : {1, 0}) {
      EXPECT_FALSE(part.weight.grad().defined());
      order.started(i);
      WeightGradientPass pass(targets[i], {}, order, graphs[i]);
      losses[i].backward();
      pass.catch_up();
      order.ended(*graphs[i]);
    }
    // Else what the parts are computed from is in memory until the end of the step.
    EXPECT_EQ(part.weight.grad().defined(), announced);
    sums.push_back(announced ? part.weight.grad().clone() : at::Tensor());
    order.finish();
    EXPECT_TRUE(!announced || part.weight.grad().equal(sums[0])) << "added twice";
    sums.back() = part.weight.grad();
  }
  EXPECT_TRUE(sums[0].equal(sums[1]));
}

/// Does what a test asks for before a region runs again.
struct Meanwhile : BeforeRegion {
  void region_comes() override {
    ++times;
    if (what) {
      what();
    }
  }
  int times = 0;
  std::function<void()> what;
};

TEST(Recompute, IsToldOfBeforeARegionRunsAgain) {
  Meanwhile meanwhile;
  Part kept;
  Part part;
  const at::Tensor wanted = kept.forward(kept.forward(rows(true)));
  wanted.sum().backward();
  torch::manual_seed(4);
  at::Tensor x = torch::randn({5, 6}).requires_grad_();
  const BeforeRegionScope scope(&meanwhile);
  // The script's random numbers and modes are what they were around the backward.
  meanwhile.what = [&, runs = 2]() mutable {
    EXPECT_EQ(part.runs, runs++);
    EXPECT_EQ(inside(), nullptr);
    EXPECT_FALSE(at::GradMode::is_enabled());
    torch::rand({3});
  };
  called(part, part.region(), called(part, part.region(), x)).sum().backward();
  EXPECT_EQ(meanwhile.times, 2);
  EXPECT_EQ(part.runs, 4);
  EXPECT_TRUE(part.weight.grad().equal(kept.weight.grad()));

  at::Tensor changed = rows(false);
  meanwhile.what = [&] { changed.add_(1); };
  at::Tensor y = called(part, part.region(), changed);
  EXPECT_THAT(
      error_of([&] { y.sum().backward(); }), HasSubstr("was changed in place after the call"));

  meanwhile.what = [] { throw UserError("the rank has ended"); };
  y = called(part, part.region(), rows(true));
  EXPECT_EQ(error_of([&] { y.sum().backward(); }), "the rank has ended");
  {
    const BeforeRegionScope nobody(nullptr);
    y = called(part, part.region(), rows(true));
    y.sum().backward();
  }
  EXPECT_EQ(BeforeRegionScope::current(), &meanwhile);
}

TEST(Recompute, SaysWhatCannotBe) {
  Part part;
  Region changes = part.region();
  changes.run = [](const c10::IValue& args) {
    return pack(std::get<0>(unpack<std::tuple<at::Tensor>>(args)).detach().mul_(2));
  };
  EXPECT_THAT(
      error_of([&] { called(part, changes, rows(false)); }),
      HasSubstr("module 'part' changed one of its arguments in place"));

  at::Tensor x = rows(false);
  at::Tensor y = called(part, part.region(), x);
  x.add_(1);
  EXPECT_THAT(
      error_of([&] { y.sum().backward(); }), HasSubstr("was changed in place after the call"));

  y = called(part, part.region(), rows(true)).sum();
  EXPECT_THAT(
      error_of([&] { y.backward({}, /*retain_graph=*/true, /*create_graph=*/true); }),
      HasSubstr("without create_graph"));
  y = called(part, part.region(), rows(true)).sum();
  y.backward({}, /*retain_graph=*/true);
  y.backward();

  int runs = 0;
  Region flows = part.region();
  flows.run = [&](const c10::IValue& args) {
    const at::Tensor in = std::get<0>(unpack<std::tuple<at::Tensor>>(args));
    return pack(in.mm(part.weight).narrow(0, 0, 3 - runs++));
  };
  y = called(part, std::move(flows), rows(true)).sum();
  EXPECT_THAT(error_of([&] { y.backward(); }), HasSubstr("its flow depends on data"));
}

} // namespace
} // namespace tessera::recompute
