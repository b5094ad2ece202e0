// What a step returns for the results of its microbatches.
#include "tessera/train/step_output.h"

#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;

struct Heads {
  Tensor policy;
  Tensor value;
};
struct Output {
  Tensor loss;
  Heads heads;
  std::vector<Tensor> levels;
  std::map<int, Tensor> named;
  int steps;
};

Output of_microbatch(int i) {
  const Tensor x = torch::full({2, 1}, 1.0 * i);
  return {x.sum(), {x + 1, x + 2}, {x + 3}, {{4, x + 4}}, i};
}

using Joined = detail::StepResult<Output>;

TEST(StepOutput, UnlikeShapesAreSaidWithTheirMicrobatches) {
  const StepOutput out({torch::zeros({2, 6}), torch::zeros({3, 6}), torch::zeros({2, 7})});
  try {
    (void)out.concat();
    FAIL() << "joined unlike shapes";
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[2, 7] in microbatch 2 and [2, 6] in microbatch 0"));
    EXPECT_THAT(error.what(), HasSubstr("outputs()"));
  }
  EXPECT_THROW((void)out.reduce_mean(), ShapeError);
  const StepOutput rows({torch::zeros({2, 6}), torch::zeros({0}), torch::zeros({3, 6})});
  EXPECT_EQ(rows.merge().size(0), 5);
}

TEST(StepOutput, AccumulateIsTheMeanAndAddsItToWhatIsThere) {
  const std::vector<Tensor> parts = {
      torch::tensor({1.0, 2.0}), torch::tensor({4.0, 6.0}), torch::tensor({7.0, 1.0})};
  const StepOutput out(parts);
  for (const char* method : {"variable", "add_n", "accumulate_n"}) {
    EXPECT_TRUE(out.accumulate(method).equal(torch::tensor({4.0, 3.0}))) << method;
  }
  EXPECT_TRUE(torch::allclose(out.accumulate(), out.reduce_mean()));
  EXPECT_TRUE(out[0].equal(torch::tensor({1.0, 2.0}))) << "a result was overwritten";
  Tensor kept = torch::tensor({10.0, 20.0});
  const Tensor result = out.accumulate("add_n", kept);
  EXPECT_TRUE(kept.equal(torch::tensor({14.0, 23.0})));
  EXPECT_TRUE(result.is_same(kept));
  // A graph behind the results stays whole.
  const Tensor leaf = torch::ones({2}, torch::requires_grad());
  StepOutput({leaf * 2, leaf * 4}).accumulate().sum().backward();
  EXPECT_TRUE(leaf.grad().equal(torch::full({2}, 3.0)));
}

TEST(StepOutput, AccumulateSaysWhatItCannotDo) {
  const StepOutput unlike({torch::zeros({2, 6}), torch::zeros({3, 6})});
  EXPECT_THROW((void)unlike.accumulate(), ShapeError);
  const StepOutput out({torch::zeros({2}), torch::zeros({2})});
  EXPECT_THROW((void)out.accumulate("mean"), UserError);
  EXPECT_THROW((void)out.accumulate("variable", torch::zeros({1})), ShapeError);
  EXPECT_THROW((void)StepOutput({torch::ones({2}, torch::kLong)}).accumulate(), UserError);
  EXPECT_THROW((void)StepOutput().accumulate(), UserError);
}

TEST(StepStruct, EachTensorFieldIsAStepOutput) {
  const auto out = Joined::join({of_microbatch(0), of_microbatch(10)});
  EXPECT_EQ(out[&Output::loss].reduce_mean().item<int>(), 10);
  EXPECT_EQ(out[&Output::heads][&Heads::value].concat().sum().item<int>(), 2 * 2 + 2 * 12);
  EXPECT_EQ(out[&Output::levels].at(0)[1][0].item<int>(), 13);
  EXPECT_EQ(out[&Output::named].at(4).concat().size(0), 4);
  EXPECT_THAT(out[&Output::steps], ElementsAre(0, 10));
}

TEST(StepStruct, ItsFieldsAreNamedByStructuredBindings) {
  const auto [loss, heads, levels, named, steps] =
      Joined::join({of_microbatch(1), of_microbatch(3)});
  static_assert(std::is_same_v<std::decay_t<decltype(loss)>, StepOutput>);
  static_assert(std::is_same_v<std::decay_t<decltype(heads)>, StepStruct<Heads>>);
  EXPECT_EQ(loss.reduce_sum().item<int>(), 8);
  const auto [policy, value] = heads;
  EXPECT_EQ(policy.concat().size(0), 4);
  EXPECT_THAT(steps, ElementsAre(1, 3));
}

TEST(StepStruct, OneStructForEachMicrobatch) {
  const auto out = Joined::join({of_microbatch(2), of_microbatch(5)});
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[1].steps, 5);
  int sum = 0;
  for (const Output& value : out) {
    sum += value.steps;
  }
  EXPECT_EQ(sum, 7);
}

TEST(StepStruct, InsideOfOtherResults) {
  using Result = detail::StepResult<std::vector<Heads>>;
  const auto out = Result::join({{of_microbatch(0).heads}, {of_microbatch(1).heads}});
  EXPECT_EQ(out.at(0)[&Heads::policy].outputs().size(), 2U);
}

} // namespace
} // namespace tessera
