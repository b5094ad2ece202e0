// The five primitives against what one process computes from all ranks' parts.
#include "tessera/nn/parallel/primitives.h"

#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/parallel/collectives.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/parallel/random_streams.h"

#include "ranks.h"

namespace tessera::testing {
namespace {

using nn::TensorParallel;

class Primitives : public ::testing::TestWithParam<int> {
 protected:
  Setting setting() const {
    return {GetParam(), nn::Distribution::kSpeed, false};
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Primitives, ::testing::Values(1, 2, 3, 4));

/// Rank r's tensor: other numbers and, along `dim`, another length on each.
torch::Tensor part(int rank, std::vector<std::int64_t> sizes, std::int64_t dim) {
  sizes[dim] += rank;
  return fixed_random(sizes, 100 + rank);
}

TEST_P(Primitives, AllGatherJoinsAndItsBackwardSumsSlices) {
  for (const std::int64_t dim : {0, 1, 2}) {
    on_ranks(setting(), [&](const TensorParallel& parallel) {
      std::vector<torch::Tensor> parts;
      for (int r = 0; r < parallel.size(); ++r) {
        parts.push_back(part(r, {2, 3, 2}, dim));
      }
      auto x = parts[parallel.rank()].clone().requires_grad_();
      const auto y = nn::fused_allgather_for_tp(x, dim);
      const auto expected = torch::cat(parts, dim);
      EXPECT_TRUE(torch::equal(y, expected));
      // Rank r weighs the result by (r + 1) w: the slices' gradients add up.
      const auto weights = fixed_random(expected.sizes().vec(), 7);
      (y * weights * (parallel.rank() + 1)).sum().backward();
      std::int64_t start = 0;
      for (int r = 0; r < parallel.rank(); ++r) {
        start += parts[r].size(dim);
      }
      const double factor = parallel.size() * (parallel.size() + 1) / 2.0;
      expect_close(
          x.grad(),
          weights.narrow(dim, start, x.size(dim)) * factor,
          "all-gather, dim " + std::to_string(dim));
    });
  }
}

TEST_P(Primitives, ReduceScatterSumsAndItsBackwardGathers) {
  for (const std::int64_t dim : {0, 1}) {
    on_ranks(setting(), [&](const TensorParallel& parallel) {
      torch::Tensor sum = torch::zeros({5, 7});
      for (int r = 0; r < parallel.size(); ++r) {
        sum += fixed_random({5, 7}, 20 + r);
      }
      auto x = fixed_random({5, 7}, 20 + parallel.rank()).requires_grad_();
      const auto y = nn::reduce_scatter_for_tp(x, dim);
      const auto range = nn::even_range(sum.size(dim), parallel.size(), parallel.rank());
      expect_close(y, sum.narrow(dim, range.start, range.size()), "sum");
      const auto weights = fixed_random({5, 7}, 9);
      (y * weights.narrow(dim, range.start, range.size())).sum().backward();
      expect_close(x.grad(), weights, "gathered gradient");
    });
  }
}

TEST_P(Primitives, ScatterAndMergeMovesSlicesThereAndGradientsBack) {
  on_ranks(setting(), [&](const TensorParallel& parallel) {
    std::vector<torch::Tensor> parts;
    for (int r = 0; r < parallel.size(); ++r) {
      parts.push_back(part(r, {2, 3, 5}, 0));
    }
    auto x = parts[parallel.rank()].clone().requires_grad_();
    const auto y = nn::scatter_and_merge_for_tp(x, 2, 0);
    const auto all = torch::cat(parts, 0);
    const auto range = nn::even_range(5, parallel.size(), parallel.rank());
    EXPECT_TRUE(torch::equal(y, all.narrow(2, range.start, range.size())));
    const auto weights = fixed_random(all.sizes().vec(), 10);
    (y * weights.narrow(2, range.start, range.size())).sum().backward();
    std::int64_t start = 0;
    for (int r = 0; r < parallel.rank(); ++r) {
      start += parts[r].size(0);
    }
    EXPECT_TRUE(torch::equal(x.grad(), weights.narrow(0, start, x.size(0))));
  });
}

TEST_P(Primitives, ScatterAndMergeTheOtherWay) {
  on_ranks(setting(), [&](const TensorParallel& parallel) {
    // Rank r holds r + 1 columns of a tensor of 6 rows.
    std::vector<torch::Tensor> parts;
    for (int r = 0; r < parallel.size(); ++r) {
      parts.push_back(part(r, {6, 1}, 1));
    }
    auto x = parts[parallel.rank()].clone().requires_grad_();
    const auto y = nn::scatter_and_merge_for_tp(x, 0, -1);
    const auto all = torch::cat(parts, 1);
    const auto range = nn::even_range(6, parallel.size(), parallel.rank());
    EXPECT_TRUE(torch::equal(y, all.narrow(0, range.start, range.size())));
    y.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::ones_like(x)));
  });
}

TEST_P(Primitives, AllReduces) {
  on_ranks(setting(), [&](const TensorParallel& parallel) {
    const auto value = [](int rank) { return fixed_random({3, 2}, 40 + rank); };
    torch::Tensor sum = torch::zeros({3, 2});
    for (int r = 0; r < parallel.size(); ++r) {
      sum += value(r);
    }
    auto x = value(parallel.rank()).requires_grad_();
    const auto y = nn::fwd_allreduce_for_tp(x);
    expect_close(y, sum, "forward sum");
    EXPECT_TRUE(torch::equal(x, value(parallel.rank()))); // left as it was
    (y * sum).sum().backward();
    expect_close(x.grad(), sum, "gradient as it is");

    auto z = value(0).requires_grad_();
    const auto same = nn::bwd_allreduce_for_tp(z);
    EXPECT_TRUE(torch::equal(same, z));
    (same * value(parallel.rank())).sum().backward();
    expect_close(z.grad(), sum, "sum of gradients");
  });
}

TEST_P(Primitives, ShapesOnlyCommunicatesNothing) {
  on_ranks(setting(), [&](const TensorParallel& parallel) {
    TensorParallel tracing = parallel;
    tracing.shapes_only = true;
    const nn::TensorParallelScope scope(tracing);
    if (parallel.rank() != 0) {
      return; // alone: a collective would wait for ever
    }
    const std::int64_t n = parallel.size();
    auto x = torch::ones({2, 3, 8}).requires_grad_();
    const auto gathered = nn::fused_allgather_for_tp(x, 1);
    EXPECT_EQ(gathered.sizes(), at::IntArrayRef({2, 3 * n, 8}));
    const auto moved = nn::scatter_and_merge_for_tp(gathered, 2, 0);
    EXPECT_EQ(moved.sizes(), at::IntArrayRef({2 * n, 3 * n, nn::even_range(8, n, 0).size()}));
    const auto scattered = nn::reduce_scatter_for_tp(moved, 1);
    EXPECT_EQ(scattered.size(1), 3);
    nn::bwd_allreduce_for_tp(nn::fwd_allreduce_for_tp(scattered)).sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  });
}

TEST_P(Primitives, BytesFollowTheFormulas) {
  on_ranks(setting(), [&](const TensorParallel& parallel) {
    const std::int64_t n = parallel.size();
    auto& bytes = parallel.group->traffic().bytes;
    const auto moved_by = [&](const auto& call) {
      const std::int64_t before = bytes;
      call();
      return bytes - before;
    };
    const auto x = torch::ones({12, 12});
    const std::int64_t size = 12 * 12 * 4;
    const std::int64_t lengths = n == 1 ? 0 : (n - 1) * 8;
    EXPECT_EQ(moved_by([&] { nn::fused_allgather_for_tp(x, 0); }), (n - 1) * size + lengths);
    EXPECT_EQ(moved_by([&] { nn::reduce_scatter_for_tp(x, 1); }), (n - 1) * size / n);
    EXPECT_EQ(
        moved_by([&] { nn::scatter_and_merge_for_tp(x, 1, 0); }), (n - 1) * size / n + lengths);
    EXPECT_EQ(moved_by([&] { nn::fwd_allreduce_for_tp(x); }), 2 * (n - 1) * size / n);
  });
}

TEST_P(Primitives, MasksAgreeWhereTheTensorIsReplicatedOnly) {
  on_ranks(setting(), [&](const TensorParallel& parallel) {
    const auto x = torch::ones({64, 64});
    const auto same = nn::replicated_mask(parallel, x, 0.5)();
    const auto other = seeded(1, [&] { // every rank at the same number
      return nn::sharded_mask(parallel, x, 0.5)();
    });
    for (const auto& masks : {same, other}) {
      const double kept = masks.ne(0).to(torch::kFloat).mean().item<double>();
      EXPECT_NEAR(kept, 0.5, 0.05);
      EXPECT_TRUE(torch::equal(masks.ne(0).to(torch::kFloat) * 2, masks));
    }
    const auto everybodys_same = nn::fused_allgather_for_tp(same, 0);
    const auto everybodys_other = nn::fused_allgather_for_tp(other, 0);
    for (int r = 1; r < parallel.size(); ++r) {
      EXPECT_TRUE(
          torch::equal(everybodys_same.narrow(0, 0, 64), everybodys_same.narrow(0, 64 * r, 64)));
      const auto equal = everybodys_other.narrow(0, 0, 64)
                             .eq(everybodys_other.narrow(0, 64 * r, 64))
                             .to(torch::kFloat)
                             .mean()
                             .item<double>();
      EXPECT_NEAR(equal, 0.5, 0.05); // as two streams that know nothing
    }
  });
}

TEST(PrimitiveErrors, NameTheDimension) {
  const auto x = torch::ones({2, 3});
  EXPECT_THROW(nn::fused_allgather_for_tp(x, 2), ShapeError);
  EXPECT_THROW(nn::scatter_and_merge_for_tp(x, 0, -3), ShapeError);
  EXPECT_THROW(nn::scatter_and_merge_for_tp(x, 1, -1), ShapeError);
}

struct CustomImpl : nn::DistributedModule {
  CustomImpl() {
    const auto create =
        nn::parameter_creation_scope(*this, {.use_normal = true, .initializer_range = 0.5});
    input = create.initialize_with_input_partition("input", {4, 7});
    output = create.initialize_with_output_partition("output", {7, 4});
    both = create.initialize_whole("both", {3}, nn::constant(2));
  }
  torch::Tensor input, output, both;
};

TEST_P(Primitives, ParametersAreThePartsOfWhatOneProcessDraws) {
  const auto one = seeded(3, [] {
    return std::vector<torch::Tensor>{
        torch::empty({4, 7}).normal_(0, 0.5), torch::empty({7, 4}).normal_(0, 0.5)};
  });
  on_ranks(setting(), [&](const TensorParallel& parallel) {
    const auto module = seeded(3, [] { return std::make_shared<CustomImpl>(); });
    const auto range = nn::even_range(7, parallel.size(), parallel.rank());
    EXPECT_TRUE(torch::equal(module->input, one[0].narrow(1, range.start, range.size())));
    EXPECT_TRUE(torch::equal(module->output, one[1].narrow(0, range.start, range.size())));
    EXPECT_TRUE(torch::equal(module->both, torch::full({3}, 2.0)));
    const auto& described = module->distributed_parameters();
    EXPECT_TRUE(described.at("input").scaled_batch);
    EXPECT_FALSE(described.at("both").scaled_batch);
    EXPECT_EQ(module->parameters().size(), 3U);
  });
}

} // namespace
} // namespace tessera::testing
