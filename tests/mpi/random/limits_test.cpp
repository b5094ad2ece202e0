// What cannot be independent of the layout says so, and without the key nothing changes.
#include <gmock/gmock.h>

#include "tests/mpi/random/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

torch::Tensor one_step(const std::function<torch::Tensor(torch::Tensor)>& function) {
  return tessera::step(function)(torch::ones({4, kWidth})).concat();
}

TEST(IndependentLimits, AlphaDropoutIsRefusedByName) {
  init(independent(config_of(1, 1)));
  const Ended ended;
  DistributedModel model(torch::nn::Linear(kWidth, kWidth)); // a step needs one
  EXPECT_THAT(
      error_of<UserError>(
          [] { one_step([](torch::Tensor x) { return torch::alpha_dropout(x, 0.5, true); }); }),
      HasSubstr("torch::alpha_dropout"));
}

TEST(IndependentLimits, SamplesAlongAnotherAxisAreRefused) {
  init(independent(config_of(1, 2)));
  const Ended ended;
  DistributedModel model(torch::nn::Linear(kWidth, kWidth)); // a step needs one
  auto run = tessera::step(
      [](torch::Tensor x) { return torch::dropout(x, 0.5, true); }, {.input_split_axes = {{0, 1}}});
  EXPECT_THAT(error_of<Error>([&] { run(torch::ones({3, 4})); }), HasSubstr("layout_independent"));
}

TEST(IndependentLimits, RowsThatAreNoSamplesAreRefused) {
  init(independent(config_of(1, 1)));
  const Ended ended;
  DistributedModel model(torch::nn::Linear(kWidth, kWidth)); // a step needs one
  EXPECT_THAT(
      error_of<UserError>([] {
        one_step([](torch::Tensor x) {
          return torch::dropout(torch::ones({3, 5}), 0.5, true) + x.sum();
        });
      }),
      HasSubstr("3 rows in a microbatch of 4 samples"));
}

TEST(IndependentLimits, OtherRandomNumbersAreNotUnnoticed) {
  init(independent(config_of(1, 1)));
  const Ended ended;
  DistributedModel model(torch::nn::Linear(kWidth, kWidth)); // a step needs one
  one_step([](torch::Tensor x) { return x; });
  ::testing::internal::CaptureStderr();
  one_step([](torch::Tensor x) { return torch::dropout(x, 0.5, true); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  one_step([](torch::Tensor x) { return x + torch::randn_like(x); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("torch's own generator"));
}

// The kernels are there from the tests before; a run without the key draws as ever.
TEST(IndependentLimits, WithoutTheKeyTorchsStreamIsDrawnFrom) {
  init(config_of(1, 1));
  const Ended ended;
  DistributedModel model(torch::nn::Linear(kWidth, kWidth)); // a step needs one
  if (dp_size() > 1) {
    GTEST_SKIP() << "one replica continues the script's stream";
  }
  torch::manual_seed(3);
  const auto wanted = torch::empty({4, kWidth}).bernoulli_(0.5).div_(0.5);
  torch::manual_seed(3);
  EXPECT_TRUE(one_step([](torch::Tensor x) { return torch::dropout(x, 0.5, true); }).equal(wanted));
}

} // namespace
} // namespace tessera::testing
