#include "tessera/runtime/buffer_order.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::runtime {
namespace {

constexpr std::uint64_t kKind = 1;
using TurnId = BufferOrder::TurnId;

/// Microbatch m has task 10 + m, whose second turn changes the buffer.
struct Running {
  Running() : order({{"mean", mean}, {"mask", torch::ones({3})}}) {}

  void forward(int microbatch) {
    const TurnId first{static_cast<std::uint64_t>(10 + microbatch), 0};
    const TurnId second{first.task, 1};
    EXPECT_FALSE(order.turn_ends(microbatch, first, true));
    mean.mul_(0.5).add_(microbatch);
    EXPECT_TRUE(order.turn_ends(microbatch, second, true));
  }
  void first_step() {
    order.begin(kKind, {0, 1, 2});
    EXPECT_FALSE(order.known());
    for (int i = 0; i < 3; ++i) {
      forward(i);
    }
    order.completed();
  }

  torch::Tensor mean = torch::zeros({3});
  BufferOrder order;
};

TEST(BufferOrder, LaterStepsWaitOnlyWhereABufferChanges) {
  Running run;
  run.first_step();
  run.order.begin(kKind, {0, 1, 2});
  ASSERT_TRUE(run.order.known());
  EXPECT_TRUE(run.order.may_start(2, {12, 0}));
  EXPECT_TRUE(run.order.may_start(0, {10, 1}));
  EXPECT_FALSE(run.order.may_start(1, {11, 1}));
  run.forward(0);
  EXPECT_TRUE(run.order.may_start(1, {11, 1}));
  EXPECT_FALSE(run.order.may_start(2, {12, 1}));
}

TEST(BufferOrder, TheScheduleSaysWhoIsFirst) {
  Running run;
  run.first_step();
  run.order.begin(kKind, {2, 0, 1});
  EXPECT_TRUE(run.order.may_start(1, {11, 1}));
  EXPECT_FALSE(run.order.may_start(0, {10, 1}));
}

// Its flow may depend on data; then nobody waits for what does not come.
TEST(BufferOrder, AForwardThatEndedHoldsNobodyUp) {
  Running run;
  run.first_step();
  run.order.begin(kKind, {0, 1, 2});
  EXPECT_FALSE(run.order.may_start(1, {11, 1}));
  run.order.forward_ended(0);
  EXPECT_TRUE(run.order.may_start(1, {11, 1}));
}

TEST(BufferOrder, AChangePastTheVersionIsSeenInTheFirstStep) {
  Running run;
  run.order.begin(kKind, {0, 1});
  run.mean.data_ptr<float>()[1] = 5;
  EXPECT_TRUE(run.order.turn_ends(0, {10, 0}, true));
  EXPECT_FALSE(run.order.turn_ends(0, {10, 0}, true));
}

TEST(BufferOrder, AChangeElsewhereIsAnErrorThatNamesTheBuffer) {
  Running run;
  run.first_step();
  run.order.begin(kKind, {0, 1, 2});
  run.mean.add_(1);
  try {
    run.order.turn_ends(0, {10, 0}, true);
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("'mean'"), std::string::npos) << error.what();
  }
  run.order.begin(kKind, {0, 1, 2});
  run.mean.add_(1);
  EXPECT_THROW(run.order.turn_ends(0, {10, 1}, false), UserError);
}

TEST(BufferOrder, OneMicrobatchHasOneOrder) {
  Running run;
  run.first_step();
  run.order.begin(kKind, {0});
  run.mean.add_(1);
  EXPECT_TRUE(run.order.turn_ends(0, {10, 0}, false));
}

} // namespace
} // namespace tessera::runtime
