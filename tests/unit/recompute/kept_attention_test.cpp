// An attention some heads at a time, in a region that keeps products: result and gradients have the
// bits of the operators on all heads, whatever the blocks are.
#include "tessera/recompute/kept_attention.h"

#include <limits>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/recompute/kept_bmm.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::recompute {
namespace {

struct Form {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t key_heads;
  std::int64_t queries;
  std::int64_t keys;
  std::vector<std::int64_t> added; // sizes; empty: nothing is added
  double dropout = 0;
  at::ScalarType dtype = at::kFloat;
};

enum class Way { kAllHeads, kInRegion, kSomeHeads };
enum class Added { kConstant, kLearnt };

struct Numbers {
  std::vector<at::Tensor> tensors; // result, gradients of q, k, v and, where it is learnt, `added`
  int ran_by_heads = 0;
};

at::Tensor attend(const Form& form, const std::vector<at::Tensor>& in, Way way, int& by_heads) {
  const at::Tensor q = in[0] * 0.3;
  const at::Tensor& k = in[1];
  const at::Tensor& v = in[2];
  const at::Tensor& added = in[3];
  const std::int64_t shared = form.heads / form.key_heads;
  const std::vector<std::int64_t> by_head = {form.batch, form.heads, form.queries, form.keys};
  if (way == Way::kSomeHeads && attends_by_heads(q, k, v, added)) {
    ++by_heads;
    HeadRule rule{form.batch, form.heads, {}, {}};
    if (added.defined()) {
      rule.add = [added](const HeadBlock& block, at::Tensor& scores) {
        scores.add_(block.of(added));
      };
    }
    if (form.dropout > 0) {
      rule.mask =
          torch_mask({q.size(0), shared * form.queries, form.keys}, q.options(), form.dropout);
    }
    return attend_by_heads(q, k, v, std::move(rule));
  }
  at::Tensor scores = at::bmm(q, k.transpose(1, 2));
  if (added.defined()) {
    scores = at::_unsafe_view(scores, by_head).add_(added);
    scores = scores.view({-1, shared * form.queries, form.keys});
  }
  at::Tensor weights = at::softmax(scores, -1);
  if (form.dropout > 0) {
    weights = kept_dropout(weights, form.dropout);
  }
  return kept_bmm(weights, v);
}

Numbers numbers_of(const Form& form, Way way, Added how = Added::kConstant) {
  torch::manual_seed(3);
  const auto random = [&](std::vector<std::int64_t> sizes) {
    return torch::randn(sizes).to(form.dtype);
  };
  const std::int64_t matrices = form.batch * form.key_heads;
  const std::int64_t rows = form.queries * form.heads / form.key_heads;
  std::vector<at::Tensor> in = {
      random({matrices, rows, 8}).requires_grad_(),
      random({matrices, form.keys, 8}).requires_grad_(),
      random({matrices, form.keys, 5}).requires_grad_(),
      at::Tensor()};
  if (!form.added.empty()) {
    in[3] = random(form.added);
    in[3].masked_fill_(in[3].gt(1.5), -std::numeric_limits<double>::infinity());
    in[3].set_requires_grad(how == Added::kLearnt);
  }
  Numbers found;
  const auto forward = [&](const std::vector<at::Tensor>& given) {
    return attend(form, given, way, found.ran_by_heads);
  };
  at::Tensor y;
  if (way == Way::kAllHeads) {
    y = forward(in);
  } else {
    Region region;
    region.name = "module 'part'";
    region.keeps_products = true;
    region.run = [&](const c10::IValue& args) {
      return pack(forward(unpack<std::vector<at::Tensor>>(args)));
    };
    y = unpack<at::Tensor>(run(std::move(region), pack(in)));
  }
  found.tensors.push_back(y.detach());
  y.backward(torch::randn(y.sizes()).to(form.dtype));
  for (const at::Tensor& tensor : in) {
    if (tensor.defined() && tensor.requires_grad()) {
      found.tensors.push_back(tensor.grad());
    }
  }
  found.tensors.push_back(torch::rand({1})); // behind all that was drawn
  return found;
}

std::vector<Form> forms() {
  std::vector<Form> all = {
      {1, 1, 1, 3, 3, {}},
      {2, 3, 3, 5, 7, {5, 7}},
      {2, 3, 3, 5, 7, {2, 1, 5, 7}},
      {14, 5, 5, 64, 64, {1, 5, 64, 64}}, // blocks of 12 samples
      {3, 6, 6, 256, 256, {3, 1, 1, 256}}, // of 4 heads and of 2
      {2, 6, 3, 90, 200, {2, 6, 90, 200}}, // two heads share one of keys
      {2, 2, 1, 512, 512, {512, 512}}, // one matrix is larger than a block
      {2, 4, 2, 9, 9, {4, 1, 9}}};
  const std::size_t plain = all.size();
  for (std::size_t i = 0; i < plain; ++i) {
    all.push_back(all[i]);
    all.back().dropout = 0.3;
    all.push_back(all.back());
    all.back().dtype = i % 2 == 0 ? at::kBFloat16 : at::kDouble;
  }
  return all;
}

TEST(KeptAttention, HasTheBitsOfAllHeadsAtOnce) {
  int which = 0;
  for (const Form& form : forms()) {
    const Numbers wanted = numbers_of(form, Way::kAllHeads);
    for (const Way way : {Way::kInRegion, Way::kSomeHeads}) {
      const Numbers found = numbers_of(form, way);
      EXPECT_EQ(found.ran_by_heads, way == Way::kSomeHeads ? 2 : 0);
      for (std::size_t i = 0; i < wanted.tensors.size(); ++i) {
        EXPECT_TRUE(found.tensors[i].equal(wanted.tensors[i]))
            << "form " << which << ", tensor " << i << ", way " << static_cast<int>(way);
      }
    }
    ++which;
  }
}

TEST(KeptAttention, WhatIsLearntGetsItsGradient) {
  const Form form{2, 3, 3, 5, 7, {1, 3, 5, 7}, 0.2};
  const Numbers wanted = numbers_of(form, Way::kAllHeads, Added::kLearnt);
  const Numbers found = numbers_of(form, Way::kSomeHeads, Added::kLearnt);
  ASSERT_EQ(found.tensors.size(), wanted.tensors.size());
  for (std::size_t i = 0; i < wanted.tensors.size(); ++i) {
    EXPECT_TRUE(found.tensors[i].equal(wanted.tensors[i])) << i;
  }
  EXPECT_EQ(found.ran_by_heads, 0);
}

// A sum that a layer learns is made inside of the region: only its second run sees a gradient.
TEST(KeptAttention, TheRunsOfARegionMayDiffer) {
  const auto run_with = [](bool by_heads) {
    torch::manual_seed(5);
    const at::Tensor q = torch::randn({4, 6, 8}).requires_grad_();
    const at::Tensor slope = torch::randn({1}).requires_grad_();
    Form form{2, 2, 2, 6, 6, {2, 2, 6, 6}, 0.4};
    int ran = 0;
    Region region;
    region.name = "module 'part'";
    region.keeps_products = true;
    region.run = [&](const c10::IValue& args) {
      const auto in = unpack<std::vector<at::Tensor>>(args);
      const at::Tensor added = slope * torch::ones({2, 2, 6, 6}).triu();
      return pack(attend(
          form, {in[0], in[0], in[0], added}, by_heads ? Way::kSomeHeads : Way::kInRegion, ran));
    };
    unpack<at::Tensor>(run(std::move(region), pack(std::vector<at::Tensor>{q}))).sum().backward();
    EXPECT_EQ(ran, by_heads ? 1 : 0);
    return std::vector<at::Tensor>{q.grad(), slope.grad()};
  };
  const auto wanted = run_with(false);
  const auto found = run_with(true);
  EXPECT_TRUE(found[0].equal(wanted[0]));
  EXPECT_TRUE(found[1].equal(wanted[1]));
}

TEST(KeptAttention, OutsideOfSuchARegionItIsNotUsed) {
  const at::Tensor q = torch::randn({2, 3, 4});
  EXPECT_FALSE(attends_by_heads(q, q, q, {}));
}

} // namespace
} // namespace tessera::recompute
