// Selective recomputation: products are computed once, the rest of a region twice, and the numbers
// are those without a region, to the bit.
#include "tessera/recompute/kept_products.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/autograd/addition_hook.h"
#include "tessera/autograd/f32_gradients.h"
#include "tessera/autograd/gradient_order.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/autograd/weight_gradient_pass.h"
#include "tessera/base/error.h"
#include "tessera/recompute/attentions.h"
#include "tessera/recompute/keeper.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::recompute {
namespace {

using ::testing::HasSubstr;

enum class Layout { kRows, kColumns };

/// Two products with a norm, an activation function and dropout between and around them.
struct Layer {
  explicit Layer(Layout layout, bool with_bias) : by_columns(layout == Layout::kColumns) {
    torch::manual_seed(3);
    first = torch::randn({6, 8}).requires_grad_();
    second = torch::randn({6, 8}).requires_grad_();
    if (with_bias) {
      bias = torch::randn({8}).requires_grad_();
    }
  }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& added) {
    ++linears;
    if (const at::Tensor given = given_product(); given.defined()) {
      return kept_linear(given, x, weight, added);
    }
    ++products;
    const at::Tensor y = added.defined() ? at::addmm(added, x, weight) : at::mm(x, weight);
    keep_product(y);
    return y;
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor normed = torch::layer_norm(x, {6});
    const at::Tensor wide = linear(by_columns ? normed.t().contiguous().t() : normed, first, bias);
    const at::Tensor active = torch::dropout(torch::gelu(wide), 0.5, true);
    const ReturnedCall call(returns ? this : nullptr);
    const ReturnedProduct product;
    return call.of(torch::dropout(linear(active, second.t(), {}), 0.5, true) + x);
  }
  Region region() {
    Region region;
    region.name = "module 'part'";
    region.keeps_products = true;
    region.run = [this](const c10::IValue& args) {
      return pack(forward(std::get<0>(unpack<std::tuple<at::Tensor>>(args))));
    };
    return region;
  }
  at::Tensor call(const at::Tensor& x) {
    return unpack<at::Tensor>(run(region(), pack(std::tuple<at::Tensor>(x))));
  }
  std::vector<at::Tensor> parameters() const {
    return bias.defined() ? std::vector<at::Tensor>{first, second, bias}
                          : std::vector<at::Tensor>{first, second};
  }
  bool by_columns;
  at::Tensor first, second, bias;
  bool returns = false; // the second product, but for a sum and dropout
  int linears = 0;
  int products = 0;
};

at::Tensor input_rows() {
  torch::manual_seed(4);
  return torch::randn({5, 6}).requires_grad_();
}

template <typename Run>
std::string error_said(const Run& run) {
  try {
    run();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

/// Keeps tensors as files would: as other tensors with the same bytes.
struct CopyKeeper : Keeper {
  struct Copies : KeptTensors {
    std::vector<at::Tensor> get() override {
      return tensors;
    }
    std::vector<at::Tensor> tensors;
  };
  std::unique_ptr<KeptTensors> keep(std::vector<at::Tensor> tensors, int /*microbatch*/) override {
    auto copies = std::make_unique<Copies>();
    for (const at::Tensor& tensor : tensors) {
      copies->tensors.push_back(tensor.detach().clone());
    }
    kept += static_cast<int>(tensors.size());
    return copies;
  }
  void step_begins(std::uint64_t /*kind*/) override {}
  void task_begins(PipelineTask /*task*/) override {}
  void step_ended() override {}
  int kept = 0;
};

// Of a matrix and of a transposed one, as a Conv1D and a Linear have them.
TEST(KeptProducts, WeightGradientsOfAScopeAreAddedInPlace) {
  Layer kept(Layout::kRows, true);
  Layer part(Layout::kRows, true);
  int places = 0;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  for (const at::Tensor& weight : {part.first, part.second}) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(weight));
    accumulators.back()->add_post_hook(std::make_unique<AdditionHook>(
        accumulators.back().get(),
        [] {},
        [&places] {
          ++places; // asked for where a product adds
          return at::Tensor();
        }));
  }
  const WeightGradientScope in_place;
  for (int i = 0; i < 2; ++i) {
    for (Layer* layer : {&kept, &part}) {
      torch::manual_seed(9 + i);
      const at::Tensor loss =
          (layer == &part ? part.call(input_rows()) : kept.forward(input_rows())).pow(2).sum();
      const WeightGradientPass pass({loss});
      loss.backward();
    }
  }
  EXPECT_EQ(places, 2);
  for (std::size_t i = 0; i < kept.parameters().size(); ++i) {
    EXPECT_TRUE(part.parameters()[i].grad().equal(kept.parameters()[i].grad())) << i;
  }
}

/// What sums the gradients of a stage's microbatches.
enum class Sums { kInPlace, kInOrder, kOf16Bits };

/// Two regions, one behind the other, of which a pass may put products off.
struct Stage {
  explicit Stage(Sums sums) {
    for (Layer* layer : {&front, &back}) {
      if (sums == Sums::kOf16Bits) {
        for (at::Tensor* tensor : {&layer->first, &layer->second, &layer->bias}) {
          *tensor = tensor->detach().to(at::kBFloat16).requires_grad_();
        }
      }
    }
  }
  at::Tensor loss(int microbatch) {
    torch::manual_seed(9 + microbatch);
    at::Tensor x = input_rows().to(front.first.scalar_type());
    for (Layer* layer : {&front, &back}) {
      Region region = layer->region();
      region.trains = true;
      region.parameters = layer->parameters();
      x = unpack<at::Tensor>(run(std::move(region), pack(std::tuple<at::Tensor>(x))));
    }
    return x.pow(2).sum();
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all = front.parameters();
    const std::vector<at::Tensor> others = back.parameters();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
  int without_gradient() const {
    const std::vector<at::Tensor> all = parameters();
    return static_cast<int>(std::count_if(all.begin(), all.end(), [](const at::Tensor& parameter) {
      return !parameter.grad().defined();
    }));
  }
  Layer front{Layout::kRows, true};
  Layer back{Layout::kRows, true};
};

/// Trains two microbatches, of which the second comes first. Returns how many parameters had no
/// gradient when the first backward ended.
int train(Stage& stage, Sums sums, bool awaited) {
  const WeightGradientScope in_place;
  std::optional<F32Gradients> in_f32;
  if (sums == Sums::kOf16Bits) {
    in_f32.emplace(stage.parameters());
  }
  GradientOrder order;
  const bool ordered = sums != Sums::kInPlace;
  if (ordered) {
    order.begin(stage.parameters(), {1, 0});
  }
  int without = -1;
  for (const int microbatch : {1, 0}) {
    const at::Tensor loss = stage.loss(microbatch);
    std::optional<WeightGradientPass> pass;
    GradientOrder::GraphPtr graph;
    if (ordered) {
      GradientTargets targets = targets_below({loss}, nullptr);
      graph = order.expect(microbatch, targets);
      order.started(microbatch);
      pass.emplace(std::move(targets), WeightGradientPass::Awaited{awaited, nullptr}, order, graph);
    } else {
      pass.emplace(std::vector<at::Tensor>{loss}, WeightGradientPass::Awaited{awaited, nullptr});
    }
    loss.backward();
    without = without < 0 ? stage.without_gradient() : without;
    pass->catch_up();
    if (ordered) {
      order.ended(*graph);
    }
  }
  order.finish();
  return without;
}

// The region behind frees the room for one product of the region in front: another rank waits for
// the gradient of the stage's input, not for that of a weight.
TEST(KeptProducts, WeightGradientsWaitInTheRoomThatTheBackwardHasFreed) {
  for (const Sums sums : {Sums::kInPlace, Sums::kInOrder, Sums::kOf16Bits}) {
    SCOPED_TRACE(static_cast<int>(sums));
    Stage at_once(sums);
    Stage put_off(sums);
    EXPECT_EQ(train(at_once, sums, false), 0);
    EXPECT_EQ(train(put_off, sums, true), 1);
    for (std::size_t i = 0; i < at_once.parameters().size(); ++i) {
      EXPECT_TRUE(put_off.parameters()[i].grad().equal(at_once.parameters()[i].grad())) << i;
    }
  }
}

// Which of its parts waits depends on time, so the sum would.
TEST(KeptProducts, AWeightOfTwoRegionsIsNotPutOff) {
  for (const Sums sums : {Sums::kInPlace, Sums::kInOrder}) {
    Stage stage(sums);
    stage.back.second = stage.front.second;
    stage.front.first.requires_grad_(false); // else it takes the room
    stage.front.first.mutable_grad() = torch::zeros({6, 8});
    EXPECT_EQ(train(stage, sums, true), 0);
  }
}

TEST(KeptProducts, WhatAKeeperHasMakesNoRoom) {
  CopyKeeper keeper;
  const KeeperScope scope(&keeper, 0);
  Stage stage(Sums::kInPlace);
  EXPECT_EQ(train(stage, Sums::kInPlace, true), 0);
}

TEST(KeptProducts, NumbersAreThoseWithoutAndProductsAreComputedOnce) {
  for (const Layout layout : {Layout::kRows, Layout::kColumns}) {
    for (const bool with_bias : {false, true}) {
      for (const bool elsewhere : {false, true}) {
        Layer kept(layout, with_bias);
        Layer part(layout, with_bias);
        const at::Tensor x = input_rows();
        const at::Tensor again = input_rows();
        torch::manual_seed(9);
        const at::Tensor wanted = kept.forward(x);
        wanted.pow(2).sum().backward();
        torch::manual_seed(9);
        CopyKeeper keeper;
        const KeeperScope scope(elsewhere ? &keeper : nullptr, 0);
        const at::Tensor got = part.call(again);
        EXPECT_EQ(part.products, 2);
        EXPECT_EQ(keeper.kept, elsewhere ? 3 : 0); // the argument and both results
        got.pow(2).sum().backward();
        EXPECT_EQ(part.products, 2) << "a product was computed again";
        EXPECT_EQ(part.linears, 4) << "what is between them was not";
        EXPECT_TRUE(got.equal(wanted));
        EXPECT_TRUE(again.grad().equal(x.grad()));
        for (std::size_t i = 0; i < kept.parameters().size(); ++i) {
          EXPECT_TRUE(part.parameters()[i].grad().equal(kept.parameters()[i].grad())) << i;
        }
      }
    }
  }
}

TEST(KeptProducts, ASecondBackwardThroughAGraphThatIsRetainedIsTheFirst) {
  Layer part(Layout::kRows, true);
  const at::Tensor x = input_rows();
  const at::Tensor loss = part.call(x).pow(2).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  loss.backward();
  EXPECT_TRUE(x.grad().equal(once));
}

enum class Returns { kAsItIs, kWithTheArgument, kMore, kChanged };

/// What a region makes of what its module returns.
std::vector<at::Tensor> returned_by(Returns returns, const at::Tensor& y, const at::Tensor& x) {
  switch (returns) {
    case Returns::kAsItIs:
      return {y};
    case Returns::kWithTheArgument:
      return {y, x};
    case Returns::kMore:
      return {y, y.pow(3)};
    case Returns::kChanged:
      return {y.pow(3)};
  }
  return {};
}

// Nobody needs its values in the second run, so it is neither computed again nor kept; but where
// the region makes something else of it.
TEST(KeptProducts, OfAProductThatIsReturnedNothingIsNeeded) {
  for (const bool selective : {false, true}) {
    for (const bool of_this : {false, true}) {
      for (const Returns returns :
           {Returns::kAsItIs, Returns::kWithTheArgument, Returns::kMore, Returns::kChanged}) {
        Layer kept(Layout::kRows, true);
        Layer part(Layout::kRows, true);
        part.returns = true;
        const auto sum = [](const std::vector<at::Tensor>& tensors) {
          at::Tensor total = torch::zeros({});
          for (const at::Tensor& tensor : tensors) {
            total = total + tensor.pow(2).sum();
          }
          return total;
        };
        const at::Tensor x = input_rows();
        const at::Tensor again = input_rows();
        torch::manual_seed(9);
        sum(returned_by(returns, kept.forward(x), x)).backward();
        torch::manual_seed(9);
        Region region = part.region();
        region.keeps_products = selective;
        region.module = of_this ? &part : nullptr;
        region.run = [&](const c10::IValue& args) {
          const at::Tensor given = std::get<0>(unpack<std::tuple<at::Tensor>>(args));
          return pack(returned_by(returns, part.forward(given), given));
        };
        const auto got = unpack<std::vector<at::Tensor>>(
            run(std::move(region), pack(std::tuple<at::Tensor>(again))));
        EXPECT_EQ(part.products, 2);
        sum(got).backward();
        EXPECT_EQ(part.linears, 4);
        const bool needed = !of_this || returns == Returns::kMore || returns == Returns::kChanged;
        EXPECT_EQ(part.products, 2 + (selective ? 0 : 1) + (!selective && needed ? 1 : 0));
        EXPECT_TRUE(again.grad().equal(x.grad()));
        for (std::size_t i = 0; i < kept.parameters().size(); ++i) {
          EXPECT_TRUE(part.parameters()[i].grad().equal(kept.parameters()[i].grad())) << i;
        }
      }
    }
  }
}

TEST(KeptProducts, WithWhatIsReturnedAKeeperGetsOnlyWhatIsNeeded) {
  Layer part(Layout::kRows, true);
  part.returns = true;
  CopyKeeper keeper;
  const KeeperScope scope(&keeper, 0);
  Region region = part.region();
  region.module = &part;
  run(std::move(region), pack(std::tuple<at::Tensor>(input_rows())));
  EXPECT_EQ(keeper.kept, 2); // the argument and the first product
}

TEST(KeptProducts, WithoutARegionOrInOneThatDoesNotKeepThemNothingIsKept) {
  Layer part(Layout::kRows, true);
  EXPECT_FALSE(product_is_given());
  part.forward(input_rows()).sum().backward();
  EXPECT_EQ(part.products, 2);
  Region region = part.region();
  region.keeps_products = false;
  unpack<at::Tensor>(run(std::move(region), pack(std::tuple<at::Tensor>(input_rows()))))
      .sum()
      .backward();
  EXPECT_EQ(part.products, 6);
}

TEST(KeptProducts, WhatCannotBeGivenIsSaid) {
  // Another number of products than in the first run.
  for (const int change : {-1, 1}) {
    Layer part(Layout::kRows, false);
    int runs = 0;
    Region region = part.region();
    region.run = [&](const c10::IValue& args) {
      const at::Tensor x = std::get<0>(unpack<std::tuple<at::Tensor>>(args));
      at::Tensor y = x;
      const int count = 2 + change * runs++;
      for (int i = 0; i < count; ++i) {
        y = part.linear(x, part.first, {});
      }
      return pack(y);
    };
    const at::Tensor y =
        unpack<at::Tensor>(run(region, pack(std::tuple<at::Tensor>(input_rows()))));
    EXPECT_THAT(
        error_said([&] { y.sum().backward(); }),
        ::testing::AllOf(
            HasSubstr("module 'part' computed"),
            HasSubstr(change < 0 ? "fewer products" : "more products")));
  }
}

// Inside of the region, or after it by who got the result.
TEST(KeptProducts, OneThatWasChangedInPlaceIsAnErrorWhereverItIsKept) {
  for (const bool elsewhere : {false, true}) {
    for (const bool inside : {false, true}) {
      Layer part(Layout::kRows, false);
      Region region = part.region();
      region.run = [&](const c10::IValue& args) {
        const at::Tensor x = std::get<0>(unpack<std::tuple<at::Tensor>>(args));
        at::Tensor y = part.linear(x, part.first, {});
        return pack(inside ? y.relu_() * 2 : y);
      };
      CopyKeeper keeper;
      const KeeperScope scope(elsewhere ? &keeper : nullptr, 0);
      at::Tensor y =
          unpack<at::Tensor>(run(std::move(region), pack(std::tuple<at::Tensor>(input_rows()))));
      if (!inside) {
        y.mul_(2);
      }
      EXPECT_THAT(
          error_said([&] { y.sum().backward(); }),
          HasSubstr("module 'part' keeps the results of its products, and one of them was changed "
                    "in place"))
          << elsewhere << inside;
    }
  }
}

TEST(Attentions, AreRegionsOfTheirInputs) {
  EXPECT_FALSE(attentions_recomputed());
  set_attentions(true);
  EXPECT_TRUE(attentions_recomputed());
  EXPECT_EQ(attentions_run(), 0);
  const at::Tensor q = input_rows();
  const at::Tensor k = torch::randn({5, 6}).requires_grad_();
  int runs = 0;
  const auto attention = [&](const std::vector<at::Tensor>& given) {
    EXPECT_EQ(given.size(), 3U);
    EXPECT_FALSE(given[2].defined());
    ++runs;
    const at::Tensor weights = torch::softmax(given[0].mm(given[1].t()), -1);
    return torch::dropout(weights, 0.5, true).mm(given[1]);
  };
  torch::manual_seed(9);
  const at::Tensor wanted = attention({q, k, at::Tensor()});
  wanted.pow(2).sum().backward();
  const at::Tensor of_q = q.grad().clone();
  const at::Tensor of_k = k.grad().clone();
  q.mutable_grad() = at::Tensor();
  k.mutable_grad() = at::Tensor();
  torch::manual_seed(9);
  const at::Tensor got = recompute_attention("the attention", {q, k, at::Tensor()}, attention);
  EXPECT_EQ(attentions_run(), 1);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(got.grad_fn()->next_edges().size(), 2U);
  got.pow(2).sum().backward();
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(got.equal(wanted));
  EXPECT_TRUE(q.grad().equal(of_q));
  EXPECT_TRUE(k.grad().equal(of_k));
  set_attentions(false);
  EXPECT_FALSE(attentions_recomputed());
}

} // namespace
} // namespace tessera::recompute
