// torch's own dropout, with a stream and without.
#include "tessera/random/operators.h"

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/random/mask.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::random {
namespace {

using ::testing::HasSubstr;

Stream stream_of(int data_rank, int microbatches, int microbatch) {
  Layout layout;
  layout.seed = 3;
  layout.data_rank = data_rank;
  layout.microbatches = microbatches;
  Stream stream;
  stream.layout = std::make_shared<Layout>(layout);
  stream.microbatch = microbatch;
  return stream;
}

at::Tensor dropped(const Stream& stream, const at::Tensor& x) {
  const StreamScope scope(stream);
  return torch::dropout(x, 0.5, /*train=*/true);
}

at::Tensor dropped_in_place(const at::Tensor& x) {
  at::Tensor copy = x.clone();
  torch::dropout_(copy, 0.5, /*train=*/true);
  return copy;
}

class Operators : public ::testing::Test {
 protected:
  void SetUp() override {
    take_over_dropout();
  }
};

TEST_F(Operators, WithoutAStreamTheyAreTorchsOwn) {
  const auto x = torch::ones({5, 6});
  torch::manual_seed(4);
  const auto wanted = torch::empty({5, 6}).bernoulli_(0.5).div_(0.5);
  torch::manual_seed(4);
  EXPECT_TRUE(torch::dropout(x, 0.5, true).equal(wanted));
  torch::manual_seed(4);
  EXPECT_TRUE(dropped_in_place(x).equal(wanted));
  EXPECT_TRUE(torch::dropout(x, 0.5, false).equal(x));
}

TEST_F(Operators, MicrobatchesOfReplicasArePartsOfOne) {
  const auto whole = dropped(stream_of(0, 1, 0), torch::ones({8, 3, 5}));
  for (int data_rank = 0; data_rank < 2; ++data_rank) {
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const auto part = dropped(stream_of(data_rank, 2, microbatch), torch::ones({2, 3, 5}));
      EXPECT_TRUE(part.equal(whole.narrow(0, 4 * data_rank + 2 * microbatch, 2)));
    }
  }
}

TEST_F(Operators, EveryFormOfDropoutDrawsFromTheStream) {
  const auto x = torch::rand({4, 6}) + 1;
  torch::manual_seed(1);
  const auto before = torch::randn({2});
  torch::manual_seed(1);
  const StreamScope scope(stream_of(0, 1, 0));
  const auto again = [] { current()->used = 0; };
  const auto wanted = torch::dropout(x, 0.5, true);
  again();
  EXPECT_TRUE(dropped_in_place(x).equal(wanted));
  again();
  EXPECT_TRUE(torch::nn::Dropout(0.5)(x).equal(wanted));
  again();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::dropout(x, 0.5, true).equal(wanted));
  }
  again();
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(torch::dropout(x + 0, 0.5, true).equal(wanted));
  }
  EXPECT_EQ(current()->used, 1U);
  EXPECT_FALSE(torch::dropout(x, 0.5, true).equal(wanted)); // the next use
  again();
  const auto channels = torch::nn::Dropout2d(0.5)(torch::ones({4, 6, 3, 3}));
  EXPECT_TRUE(channels.eq(0).equal(wanted.eq(0).view({4, 6, 1, 1}).expand({4, 6, 3, 3})));
  EXPECT_TRUE(torch::randn({2}).equal(before)); // the generator stands where it stood
}

TEST_F(Operators, GradientsAreDroppedAsValuesAre) {
  const StreamScope scope(stream_of(0, 1, 0));
  const auto x = torch::ones({4, 6}, torch::requires_grad());
  const auto y = torch::dropout(x, 0.5, true);
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y));
}

TEST_F(Operators, ARecomputedRegionDropsTheSame) {
  const StreamScope scope(stream_of(0, 1, 0));
  const auto x = torch::ones({4, 6}, torch::requires_grad());
  recompute::Region region;
  region.name = "a region";
  region.run = [](const c10::IValue& args) {
    return pack(torch::dropout(torch::dropout(args.toTensor(), 0.25, true), 0.5, true));
  };
  const auto y = recompute::run(region, pack(x)).toTensor();
  const auto between = torch::dropout(torch::ones({4, 6}), 0.5, true);
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y));
  EXPECT_EQ(current()->used, 3U);
}

TEST_F(Operators, WhatHasNoPlaceIsRefused) {
  const StreamScope scope(stream_of(0, 1, 0));
  const auto error_of = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(
      error_of([] {
        torch::alpha_dropout(torch::ones({2, 2}), 0.5, true);
      }),
      HasSubstr("torch::alpha_dropout draws"));
  EXPECT_THAT(
      error_of([] {
        torch::nn::FeatureAlphaDropout()(torch::ones({2, 2, 2}));
      }),
      HasSubstr("feature_alpha_dropout"));
  EXPECT_THAT(
      error_of([] { torch::dropout(torch::ones({}), 0.5, true); }),
      HasSubstr("without dimensions"));
  current()->samples = 3;
  EXPECT_THAT(
      error_of([] {
        torch::dropout(torch::ones({4, 3}), 0.5, true);
      }),
      HasSubstr("4 rows in a microbatch of 3 samples"));
}

} // namespace
} // namespace tessera::random
