#include "tessera/nn/layers/embedding.h"

#include <limits>

#include "tessera/base/error.h"

#include "ranks.h"

namespace tessera::testing {
namespace {

class EmbeddingLayer : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    EmbeddingLayer,
    ::testing::ValuesIn(all_settings({nn::Distribution::kSpeed})),
    [](const auto& info) { return info.param.name(); });

torch::nn::Embedding plain_of(const nn::DistributedEmbeddingOptions& o) {
  torch::nn::EmbeddingOptions options(o.num_embeddings, o.embedding_dim);
  options.padding_idx(o.padding_idx)
      .max_norm(o.max_norm)
      .norm_type(o.norm_type)
      .scale_grad_by_freq(o.scale_grad_by_freq)
      .sparse(o.sparse);
  return torch::nn::Embedding(options);
}

void compare_with_plain(const Setting& setting, const nn::DistributedEmbeddingOptions& options) {
  const auto samples = uneven_samples(setting.tp);
  std::int64_t batch = 0;
  for (const std::int64_t count : samples) {
    batch += count;
  }
  const auto ids = seeded(4, [&] {
    return torch::randint(options.num_embeddings, {batch, 5}, torch::kLong);
  });
  auto plain = seeded(5, [&] { return plain_of(options); });
  auto table = plain->weight.detach().clone();
  const auto weights = fixed_random({batch, 5, options.embedding_dim}, 7);
  const auto y = plain(ids);
  (y * weights).sum().backward();
  auto gradient = plain->weight.grad();
  gradient = gradient.is_sparse() ? gradient.to_dense() : gradient;

  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    nn::DistributedEmbeddingOptions own = options;
    own._weight = table;
    nn::DistributedEmbedding layer(own);
    const auto result = layer(own_part(parallel, ids, samples));
    expect_close(result, own_part(parallel, y, samples), "output");
    (result * own_part(parallel, weights, samples)).sum().backward();
    EXPECT_EQ(layer->weight.grad().is_sparse(), options.sparse);
    expect_gradients(parallel, *layer, {{"weight", gradient}});
    // max_norm changes the table itself.
    expect_close(
        layer->weight.detach(),
        nn::take_shard(layer->distributed_parameters().at("weight").shard, plain->weight.detach()),
        "table");
  });
}

void compare_both_splits(const Setting& setting, nn::DistributedEmbeddingOptions options) {
  options.num_embeddings = 11;
  options.embedding_dim = 7;
  options.split = nn::EmbeddingSplit::kEmbeddingDim;
  compare_with_plain(setting, options);
  options.split = nn::EmbeddingSplit::kVocabulary;
  compare_with_plain(setting, options);
}

TEST_P(EmbeddingLayer, EqualsThePlainLayer) {
  compare_both_splits(GetParam(), {});
}
TEST_P(EmbeddingLayer, PaddingRowGetsNoGradient) {
  compare_both_splits(GetParam(), {.padding_idx = 9});
}
TEST_P(EmbeddingLayer, SparseGradients) {
  compare_both_splits(GetParam(), {.sparse = true});
}
TEST_P(EmbeddingLayer, GradientsScaledByFrequency) {
  compare_both_splits(GetParam(), {.scale_grad_by_freq = true});
}
TEST_P(EmbeddingLayer, NormsAreThoseOfWholeRows) {
  compare_both_splits(GetParam(), {.max_norm = 1.5});
  compare_both_splits(GetParam(), {.max_norm = 2.0, .norm_type = 1.0});
  compare_both_splits(
      GetParam(), {.max_norm = 0.9, .norm_type = std::numeric_limits<double>::infinity()});
}

TEST_P(EmbeddingLayer, StartsAsTheGivenTableOrNormal) {
  on_ranks(GetParam(), [&](const nn::TensorParallel&) {
    const auto layer = seeded(5, [] {
      return nn::DistributedEmbedding(nn::DistributedEmbeddingOptions{
          .num_embeddings = 6, .embedding_dim = 5, .padding_idx = -1, .initializer_range = 0.3});
    });
    const auto full = seeded(5, [] {
      auto table = torch::empty({6, 5}).normal_(0, 0.3);
      table.select(0, 5).zero_();
      return table;
    });
    expect_parts_of(*layer, {{"weight", full}});
  });
}

TEST_P(EmbeddingLayer, OwnColumnsForAllSamplesOnRequest) {
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    const auto table = fixed_random({6, 5}, 8);
    nn::DistributedEmbedding layer(nn::DistributedEmbeddingOptions{
        .num_embeddings = 6,
        .embedding_dim = 5,
        ._weight = table,
        ._skip_allgather = true,
        ._skip_scatter_and_merge = true});
    const auto ids = torch::tensor({{5, 0}, {3, 3}, {1, 2}});
    const auto range = nn::even_range(5, parallel.size(), parallel.rank());
    EXPECT_TRUE(torch::equal(
        layer(ids), torch::embedding(table, ids).narrow(2, range.start, range.size())));
    const std::int64_t before = parallel.group->traffic().bytes;
    layer(ids);
    EXPECT_EQ(parallel.group->traffic().bytes - before, 0);
  });
}

TEST_P(EmbeddingLayer, EachOfTheTwoSkipsAlone) {
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    const auto table = fixed_random({6, 5}, 8);
    const std::int64_t ranks = parallel.prescaled_batch ? 1 : parallel.size();
    const auto ids = torch::arange(2 * ranks).remainder(6).unsqueeze(1);
    const auto weights = fixed_random({2 * ranks, 1, 5}, 9);
    const auto mine = [&](const torch::Tensor& t) {
      return ranks == 1 ? t : t.narrow(0, 2 * parallel.rank(), 2);
    };
    const auto columns = nn::even_range(5, parallel.size(), parallel.rank());
    const auto plain = table.clone().requires_grad_();
    const auto rows = torch::embedding(plain, ids);
    (rows * weights).sum().backward();
    const auto own = [&](const torch::Tensor& t) {
      return t.narrow(-1, columns.start, columns.size());
    };

    nn::DistributedEmbedding gathered(nn::DistributedEmbeddingOptions{
        .num_embeddings = 6, .embedding_dim = 5, ._weight = table, ._skip_allgather = true});
    const auto y = gathered(ids);
    expect_close(y.detach(), mine(rows.detach()), "gathered by the caller");
    (y * mine(weights)).sum().backward();
    expect_close(gathered->weight.grad(), own(plain.grad()), "its gradient");

    nn::DistributedEmbedding unmerged(nn::DistributedEmbeddingOptions{
        .num_embeddings = 6,
        .embedding_dim = 5,
        ._weight = table,
        ._skip_scatter_and_merge = true});
    const auto z = unmerged(mine(ids));
    expect_close(z.detach(), own(rows.detach()), "own columns of all samples");
    (z * own(weights)).sum().backward();
    expect_close(unmerged->weight.grad(), own(plain.grad()), "its gradient");
    if (ranks > 1) {
      EXPECT_THROW(gathered(torch::zeros({ranks + 1}, torch::kLong)), ShapeError);
    }
  });
}

TEST_P(EmbeddingLayer, BytesFollowTheFormulas) {
  const bool prescaled = GetParam().prescaled;
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    const std::int64_t n = parallel.size();
    const std::int64_t others = n - 1;
    for (const auto split : {nn::EmbeddingSplit::kEmbeddingDim, nn::EmbeddingSplit::kVocabulary}) {
      nn::DistributedEmbedding layer(nn::DistributedEmbeddingOptions{
          .num_embeddings = 12, .embedding_dim = 16, .split = split});
      const auto ids = torch::zeros({8, 3}, torch::kLong);
      auto& bytes = parallel.group->traffic().bytes;
      std::int64_t before = bytes;
      const auto y = layer(ids);
      const std::int64_t rows = 24 * 16 * 4; // bytes of this rank's result
      const bool by_width = split == nn::EmbeddingSplit::kEmbeddingDim;
      const std::int64_t indices = others * (8 + 8 * 24);
      EXPECT_EQ(
          bytes - before,
          prescaled ? (by_width ? others * rows / n : 2 * others * rows / n)
          : n == 1  ? 0
                    : indices + (by_width ? others * rows / n : others * rows));
      before = bytes;
      y.sum().backward();
      EXPECT_EQ(bytes - before, prescaled ? 0 : by_width ? others * rows / n : others * rows);
    }
  });
}

TEST_P(EmbeddingLayer, AnIndexOutsideTheTableIsAnError) {
  on_ranks(GetParam(), [&](const nn::TensorParallel&) {
    nn::DistributedEmbedding layer(nn::DistributedEmbeddingOptions{
        .num_embeddings = 6, .embedding_dim = 5, .split = nn::EmbeddingSplit::kVocabulary});
    EXPECT_THROW(layer(torch::tensor({6})), ShapeError);
    EXPECT_THROW(layer(torch::tensor({-1})), ShapeError);
  });
}

TEST(EmbeddingErrors, OptionsThatExcludeEachOther) {
  using Options = nn::DistributedEmbeddingOptions;
  EXPECT_THROW(
      nn::DistributedEmbedding(Options{.num_embeddings = 3, .embedding_dim = 2, .padding_idx = 3}),
      ConfigError);
  EXPECT_THROW(
      nn::DistributedEmbedding(
          Options{.num_embeddings = 3, .embedding_dim = 2, ._weight = torch::ones({2, 3})}),
      ShapeError);
}

} // namespace
} // namespace tessera::testing
