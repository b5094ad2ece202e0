// Fast mode: tensors go from the rank that makes them to those that read them.
// Messages and bytes are counted against closed numbers.
#include <gmock/gmock.h>

#include "tessera/context/context.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kMicrobatches = 3;
constexpr int kRows = 64; // of a microbatch: 2 KiB a tensor

struct BlockChainImpl : torch::nn::Module {
  explicit BlockChainImpl(int blocks) {
    for (int i = 0; i < blocks; ++i) {
      body->push_back(Block());
    }
    register_module("body", body);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return body(x);
  }
  nn::Sequential body;
};
TESSERA_MODULE(BlockChain);

struct JoinImpl : torch::nn::Module {
  JoinImpl() {
    a = register_module("a", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& h, const torch::Tensor& early) {
    return torch::tanh(a(h)) * early;
  }
  nn::Linear a{nullptr};
};
TESSERA_MODULE(Join);

/// `early` skips a module; the parent reads neither it nor `h`.
struct SkipImpl : torch::nn::Module {
  SkipImpl() {
    a = register_module("a", Block());
    b = register_module("b", Block());
    c = register_module("c", Join());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto early = a(x);
    auto h = b(early);
    if (log) {
      logged = h.abs().max().item<double>();
    }
    return c(h, early);
  }
  Block a{nullptr}, b{nullptr};
  Join c{nullptr};
  bool log = false;
  double logged = 0;
};
TESSERA_MODULE(Skip);

/// The parent adds, so it reads.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl() {
    a = register_module("a", Block());
    b = register_module("b", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = a(x);
    return h + b(h);
  }
  Block a{nullptr}, b{nullptr};
};
TESSERA_MODULE(Residual);

/// Passes its argument and its child's result on unread.
struct PassingImpl : torch::nn::Module {
  PassingImpl() {
    inner = register_module("inner", Block());
    again = register_module("again", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return again(inner(x));
  }
  Block inner{nullptr}, again{nullptr};
};
TESSERA_MODULE(Passing);

struct NestedChainImpl : torch::nn::Module {
  NestedChainImpl() {
    first = register_module("first", Passing());
    last = register_module("last", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(first(x));
  }
  Passing first{nullptr};
  Block last{nullptr};
};
TESSERA_MODULE(NestedChain);

Config with_mode(Config config, bool static_mode, bool fast_mode) {
  config.static_mode = static_mode;
  config.static_mode_steps = static_mode ? 1 : 5;
  config.fast_mode = fast_mode;
  return config;
}

struct Sent {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  double loss = 0;
};

Sent sent_by_pipeline() {
  const auto counters = context().transport->counters();
  Sent sum;
  for (const auto& [messages, bytes] :
       allgather(std::make_pair(counters.messages_sent, counters.bytes_sent), Group::kPP)) {
    sum.messages += messages;
    sum.bytes += bytes;
  }
  return sum;
}

// What the fourth step sends.
template <typename MakeNet>
Sent count(const Config& config, MakeNet make_net) {
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(make_net());
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  Sent sent;
  for (int i = 0; i < 4; ++i) {
    const Batch batch = mine_of(random_batches(kMicrobatches * kRows * dp_size())(i));
    const Sent before = sent_by_pipeline();
    sent.loss = step(batch.x, batch.y).reduce_mean().template item<double>();
    barrier();
    const Sent after = sent_by_pipeline();
    sent.messages = after.messages - before.messages;
    sent.bytes = after.bytes - before.bytes;
  }
  return sent;
}

constexpr std::int64_t kTensor = kRows * kWidth * sizeof(float);
constexpr std::int64_t kPerMessage = 200; // fixed fields and one stub

TEST(FastMode, AChainMovesEachCutEdgeOnceAndDirection) {
  const int pp = world_size();
  std::map<std::string, int> partition;
  for (int i = 0; i < 2 * pp; ++i) {
    partition[str("body.", i)] = i / 2;
  }
  const auto make = [&] { return BlockChain(2 * pp); };
  const Config config = placed(pp, kMicrobatches, partition);
  const Sent dynamic = count(with_mode(config, false, false), make);
  const Sent repeated = count(with_mode(config, true, false), make);
  const Sent direct = count(with_mode(config, true, true), make);
  EXPECT_NEAR(repeated.loss, dynamic.loss, 1e-6 * dynamic.loss);
  EXPECT_NEAR(direct.loss, dynamic.loss, 1e-6 * dynamic.loss);
  // Two ends of a call each way; the first two blocks are on rank 0, so every
  // argument has a gradient.
  EXPECT_EQ(dynamic.messages, kMicrobatches * 4 * (pp - 1) + pp - 1);
  EXPECT_EQ(repeated.messages, kMicrobatches * 4 * (pp - 1) + pp - 1);
  // 0 -> 1 -> ... -> pp - 1 -> 0: pp edges in each direction.
  EXPECT_EQ(direct.messages, kMicrobatches * 2 * pp + pp - 1);
  const std::int64_t tensors = kMicrobatches * 2 * pp;
  EXPECT_GE(direct.bytes, tensors * kTensor);
  EXPECT_LE(
      direct.bytes,
      tensors * kTensor + direct.messages * kPerMessage +
          (pp - 1) * kMicrobatches * 64); // the losses
}

TEST(FastMode, ASkippingTensorMovesOnceToEachRankThatReadsIt) {
  if (world_size() != 4) {
    GTEST_SKIP() << "needs 4 ranks";
  }
  const Config config = placed(4, kMicrobatches, {{"a", 1}, {"b", 2}, {"c", 3}});
  const auto make = [] { return Skip(); };
  const Sent dynamic = count(with_mode(config, false, false), make);
  const Sent direct = count(with_mode(config, true, true), make);
  EXPECT_NEAR(direct.loss, dynamic.loss, 1e-6 * dynamic.loss);
  EXPECT_EQ(dynamic.messages, kMicrobatches * 4 * 3 + 3);
  // Forward x, a -> b, a -> c, b -> c, c -> 0; backward the same without x; the
  // last rank of the backward, a's, says that it is done.
  EXPECT_EQ(direct.messages, kMicrobatches * (5 + 4) + 3 + 1);
  EXPECT_LE(
      direct.bytes,
      kMicrobatches * 9 * kTensor + direct.messages * kPerMessage + 3 * kMicrobatches * 64);
}

TEST(FastMode, ATensorForTwoModulesOfOneRankStaysThere) {
  const Config config = placed(2, kMicrobatches, {{"a", 1}, {"b", 0}, {"c", 1}});
  const auto make = [] { return Skip(); };
  const Sent dynamic = count(with_mode(config, false, false), make);
  const Sent direct = count(with_mode(config, true, true), make);
  EXPECT_NEAR(direct.loss, dynamic.loss, 1e-6 * dynamic.loss);
  EXPECT_EQ(dynamic.messages, kMicrobatches * 4 * 2 + 1);
  // b runs on the parent's rank: `early` is read there and goes the plain way.
  EXPECT_EQ(direct.messages, kMicrobatches * (4 + 3) + 1 + 1);
}

TEST(FastMode, AParentThatReadsKeepsThePlainWay) {
  const Config config = placed(2, kMicrobatches, {{"a", 1}, {"b", 1}});
  const auto make = [] { return Residual(); };
  const Sent repeated = count(with_mode(config, true, false), make);
  const Sent direct = count(with_mode(config, true, true), make);
  EXPECT_EQ(direct.messages, repeated.messages);
  EXPECT_NEAR(direct.loss, repeated.loss, 1e-6 * repeated.loss);
}

TEST(FastMode, ModulesBetweenThatOnlyPassOnAreSkipped) {
  if (world_size() != 4) {
    GTEST_SKIP() << "needs 4 ranks";
  }
  const Config config =
      placed(4, kMicrobatches, {{"first", 1}, {"first.inner", 2}, {"first.again", 3}, {"last", 2}});
  const auto make = [] { return NestedChain(); };
  const Sent dynamic = count(with_mode(config, false, false), make);
  const Sent direct = count(with_mode(config, true, true), make);
  EXPECT_NEAR(direct.loss, dynamic.loss, 1e-6 * dynamic.loss);
  EXPECT_EQ(dynamic.messages, kMicrobatches * 4 * 4 + 3);
  // 0 -> inner -> again -> last -> 0, and back but for x; rank 1 passes on
  // what never comes to it, and says like inner's that it is done.
  EXPECT_EQ(direct.messages, kMicrobatches * (4 + 3) + 3 + 2);
}

TEST(FastMode, AReadThatTheVerifyingStepDidNotSeeIsExplained) {
  init(with_mode(placed(2, kMicrobatches, {{"a", 1}, {"b", 1}, {"c", 1}}), true, true));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(Skip{});
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  const Batch batch = mine_of(random_batches(3 * dp_size())(0));
  for (int i = 0; i < 3; ++i) {
    step(batch.x, batch.y);
  }
  model.net()->log = true;
  const std::string text = error_of<UserError>([&] { step(batch.x, batch.y); });
  EXPECT_THAT(text, HasSubstr("aten::abs reads the result of module 'b'"));
  EXPECT_THAT(text, HasSubstr("\"fast_mode\": false"));
  model.net()->log = false;
  step(batch.x, batch.y);
}

} // namespace
} // namespace tessera::testing
