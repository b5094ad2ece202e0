// Architectures of several families under pp 2 and 4, dp 1 and 2: ten steps
// equal the plain loop, each loss, each parameter, each buffer. They compute in double precision:
// the sum over replicas rounds in another order than the plain loop, and in single precision one
// of half a million inputs of a ReLU is so near to 0 that this changes its sign.
#include "tests/parity/architectures.h"

#include <mpi.h>

#include "models/ncf.h"
#include "models/presets.h"
#include "models/t5.h"
#include "tests/parity/train_slices.h"

namespace tessera::testing {
namespace {

constexpr int kRows = 32;
constexpr int kSteps = 10;
constexpr int kMicrobatches = 4;

Config config_of(int pp, int dp) {
  Config config;
  config.pipeline_parallel_degree = pp;
  config.microbatches = kMicrobatches;
  config.ddp = dp > 1;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  config.memory_weight = 1.0; // by bytes: the same partition in every run
  return config;
}

template <typename MakeNet, typename LossesOf>
void check(
    int pp,
    MakeNet make_single,
    const MakeTensors& single_batches,
    const LossesOf& losses_of,
    double rate) {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const int dp = world / pp;
  if (world % pp != 0 || dp > 2) {
    GTEST_SKIP() << pp << " pipeline ranks do not fit " << world;
  }
  const auto make_net = [&] {
    auto net = make_single();
    net->to(torch::kDouble);
    return net;
  };
  const auto batches = [&](int step) {
    Tensors batch = single_batches(step);
    for (auto& tensor : batch) {
      tensor = tensor.is_floating_point() ? tensor.to(torch::kDouble) : tensor;
    }
    return batch;
  };
  constexpr double kTolerance = 1e-10;
  const auto wanted =
      train_plain_slices(make_net, batches, losses_of, kSteps, dp, kMicrobatches, rate);
  for (std::size_t k = 0; k < wanted.losses[0].size(); ++k) {
    EXPECT_LT(wanted.losses.back()[k], wanted.losses.front()[k]) << k;
  }
  for (const std::string mode : {"modules", "operations"}) {
    Config config = config_of(pp, dp);
    config.partition_mode = mode;
    const auto got = train_distributed_slices(config, make_net, batches, losses_of, kSteps, rate);
    expect_equal(got, wanted, str("pp ", pp, ", dp ", dp, ", partition_mode ", mode), kTolerance);
  }
}

torch::Tensor integers(std::int64_t below, std::vector<std::int64_t> shape) {
  return torch::randint(1, below, shape, torch::kLong);
}

// 1 for the first tokens of each row, at least `least` of them.
torch::Tensor mask_of(std::int64_t tokens, std::int64_t least) {
  const auto lengths = torch::randint(least, tokens + 1, {kRows, 1});
  return (torch::arange(tokens) < lengths).to(torch::kLong);
}

class Architecture : public ::testing::TestWithParam<int> {};

// Encoder and decoder with the embedding tied to the output, padded rows.
TEST_P(Architecture, T5) {
  models::T5Options options;
  options.vocab_size = 61;
  options.d_model = 24;
  options.d_kv = 8;
  options.d_ff = 32;
  options.num_layers = 3;
  options.num_decoder_layers = 2;
  options.num_heads = 4;
  options.dropout_rate = 0;
  const auto batches = [](int step) -> Tensors {
    torch::manual_seed(300 + step);
    const auto ids = integers(61, {kRows, 9});
    const auto mask = mask_of(9, 3);
    const auto length = mask_of(6, 2);
    const auto targets = ids.narrow(1, 0, 6).masked_fill(length.eq(0), models::kIgnoredTarget);
    return {ids, mask, targets, length};
  };
  const auto losses = [options](auto& model, const Tensors& batch) -> Tensors {
    const auto decoder_ids = models::shift_right(batch[2], options);
    return {models::cross_entropy(model(batch[0], decoder_ids, batch[1], batch[3]), batch[2])};
  };
  check(
      GetParam(), [=] { return models::T5(options); }, batches, losses, 0.05);
}

// The pooler's head and the masked head, each with its loss.
TEST_P(Architecture, BertWithTwoLosses) {
  models::BertOptions options;
  options.vocab_size = 53;
  options.hidden_size = 24;
  options.num_hidden_layers = 3;
  options.num_attention_heads = 4;
  options.intermediate_size = 48;
  options.max_position_embeddings = 16;
  options.hidden_dropout_prob = 0;
  options.attention_probs_dropout_prob = 0;
  const auto batches = [](int step) -> Tensors {
    torch::manual_seed(400 + step);
    const auto ids = integers(53, {kRows, 12});
    const auto mask = mask_of(12, 6);
    const auto types = (torch::arange(12) >= 5).to(torch::kLong);
    auto targets = ids.masked_fill(torch::rand({kRows, 12}) < 0.7, models::kIgnoredTarget);
    targets.select(1, 2).copy_(ids.select(1, 2)); // never none in a row
    const auto is_next = (ids.select(1, 0) > 26).to(torch::kLong);
    return {ids, mask, types.expand({kRows, 12}), targets, is_next};
  };
  const auto losses = [](auto& model, const Tensors& batch) -> Tensors {
    const auto [words, pair] = model(batch[0], batch[1], batch[2]);
    return {models::cross_entropy(words, batch[3]), models::cross_entropy(pair, batch[4])};
  };
  check(
      GetParam(), [=] { return models::Bert(options); }, batches, losses, 0.05);
}

TEST_P(Architecture, Ncf) {
  models::NcfOptions options;
  options.users = 40;
  options.items = 30;
  options.factors = 8;
  options.first_layer = 16;
  options.layers = 3;
  const auto batches = [](int step) -> Tensors {
    torch::manual_seed(500 + step);
    const auto users = torch::randint(0, 40, {kRows}, torch::kLong);
    const auto items = torch::randint(0, 30, {kRows}, torch::kLong);
    // Mostly 1: what ten steps can learn is the bias.
    return {users, items, (users + items > 15).to(torch::kFloat)};
  };
  const auto losses = [](auto& model, const Tensors& batch) -> Tensors {
    return {torch::binary_cross_entropy_with_logits(model(batch[0], batch[1]), batch[2])};
  };
  check(
      GetParam(), [=] { return models::Ncf(options); }, batches, losses, 0.1);
}

Tensors images_of(int step, std::int64_t classes) {
  torch::manual_seed(600 + step);
  const auto kinds = torch::randint(0, classes, {kRows}, torch::kLong);
  const auto level = kinds.to(torch::kFloat).view({kRows, 1, 1, 1}) / classes;
  return {torch::randn({kRows, 3, 8, 8}) * 0.5 + level, kinds};
}

// Batch normalisation: statistics of a microbatch, running ones of the first
// replica; see train_plain_slices.
TEST_P(Architecture, ResidualNetWithBatchNorm) {
  const auto batches = [](int step) { return images_of(step, 10); };
  const auto losses = [](auto& model, const Tensors& batch) -> Tensors {
    return {models::cross_entropy(model(batch[0]), batch[1])};
  };
  check(
      GetParam(), [] { return ResidualNet(); }, batches, losses, 0.05);
}

// Both encoders meet in a loss that needs all rows of the microbatch.
TEST_P(Architecture, TwoEncoders) {
  models::BertOptions options;
  options.vocab_size = 20;
  options.hidden_size = 16;
  options.num_hidden_layers = 2;
  options.num_attention_heads = 2;
  options.intermediate_size = 32;
  options.hidden_dropout_prob = 0;
  options.attention_probs_dropout_prob = 0;
  const auto batches = [](int step) -> Tensors {
    const auto images = images_of(step, 8);
    const auto ids = integers(20, {kRows, 5});
    ids.select(1, 0).copy_(images[1]); // the text names the image
    return {images[0], ids, mask_of(5, 2)};
  };
  const auto losses = [](auto& model, const Tensors& batch) -> Tensors {
    const auto similar = model(batch[0], batch[1], batch[2]);
    const auto pairs = torch::arange(similar.size(0));
    return {models::cross_entropy(similar, pairs), models::cross_entropy(similar.t(), pairs)};
  };
  check(
      GetParam(), [=] { return TwoEncoders(options); }, batches, losses, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Pipelines, Architecture, ::testing::Values(2, 4));

} // namespace
} // namespace tessera::testing
