// The expert layer beside a loop over experts in one process.
#include "tessera/nn/layers/experts.h"

#include <cmath>

#include "tessera/base/error.h"

#include "ranks.h"

namespace tessera::testing {
namespace {

using Options = nn::DistributedExpertsOptions;

/// Token by token, choice by choice: what the capacity lets through.
struct PlainExpertsImpl : torch::nn::Module {
  explicit PlainExpertsImpl(const Options& o) : options(o) {
    const auto experts = o.num_experts;
    const auto uniform = [](std::vector<std::int64_t> sizes, double fan_in) {
      const double bound = 1 / std::sqrt(fan_in);
      return torch::empty(sizes).uniform_(-bound, bound);
    };
    gate = register_parameter(
        "gate", torch::empty({experts, o.hidden_size}).normal_(0, o.initializer_range));
    inner_weight = register_parameter(
        "inner_weight", uniform({experts, o.intermediate_size, o.hidden_size}, o.hidden_size));
    inner_bias =
        register_parameter("inner_bias", uniform({experts, o.intermediate_size}, o.hidden_size));
    outer_weight = register_parameter(
        "outer_weight",
        uniform({experts, o.hidden_size, o.intermediate_size}, o.intermediate_size));
    outer_bias =
        register_parameter("outer_bias", uniform({experts, o.hidden_size}, o.intermediate_size));
  }
  torch::Tensor expert(std::int64_t e, const torch::Tensor& token) {
    const auto inner = torch::gelu(torch::mv(inner_weight[e], token) + inner_bias[e]);
    return torch::mv(outer_weight[e], inner) + outer_bias[e];
  }
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
    const auto& o = options;
    const auto tokens = x.reshape({-1, o.hidden_size});
    const auto count = tokens.size(0);
    const auto capacity =
        o.capacity_factor == 0
            ? count
            : std::min<std::int64_t>(
                  count, std::ceil(o.capacity_factor * o.top_k * count / o.num_experts));
    const auto chances = torch::softmax(torch::matmul(tokens, gate.t()), 1);
    const auto order = std::get<1>(chances.sort(1, /*descending=*/true));
    std::vector<std::int64_t> taken(o.num_experts, 0);
    std::vector<torch::Tensor> rows(count, torch::zeros({o.hidden_size}));
    auto shares = torch::zeros({o.num_experts});
    for (std::int64_t k = 0; k < o.top_k; ++k) {
      for (std::int64_t t = 0; t < count; ++t) {
        const auto e = order[t][k].item<std::int64_t>();
        shares[e] += 1.0 / static_cast<double>(count * o.top_k);
        if (taken[e] == capacity) {
          ++dropped;
          continue;
        }
        ++taken[e];
        torch::Tensor total = torch::ones({});
        if (o.normalize_gates) {
          total = chances[t].index_select(0, order[t].slice(0, 0, o.top_k)).sum();
        }
        rows[t] = rows[t] + expert(e, tokens[t]) * (chances[t][e] / total);
      }
    }
    return {torch::stack(rows).view(x.sizes()), (shares * chances.mean(0)).sum() * o.num_experts};
  }
  Options options;
  int dropped = 0;
  torch::Tensor gate, inner_weight, inner_bias, outer_weight, outer_bias;
};
TORCH_MODULE(PlainExperts);

class Experts : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    Experts,
    ::testing::ValuesIn(all_settings({nn::Distribution::kSpeed})),
    [](const auto& info) { return info.param.name(); });

void compare_experts(const Setting& setting, const Options& options, bool expect_drops) {
  const auto samples = uneven_samples(setting.tp);
  std::int64_t batch = 0;
  for (const std::int64_t count : samples) {
    batch += count;
  }
  auto plain = seeded(3, [&] { return PlainExperts(options); });
  auto x = fixed_random({batch, 3, options.hidden_size}, 4).requires_grad_();
  const auto weights = fixed_random({batch, 3, options.hidden_size}, 5);
  // Each rank's tokens compete for places among themselves.
  std::vector<torch::Tensor> outputs, losses;
  std::int64_t start = 0;
  for (const std::int64_t count : setting.prescaled ? std::vector<std::int64_t>{batch} : samples) {
    const auto result = plain(x.narrow(0, start, count));
    outputs.push_back(result.first);
    losses.push_back(result.second);
    start += count;
  }
  const auto y = torch::cat(outputs);
  ((y * weights).sum() + torch::stack(losses).sum() * 0.7).backward();
  EXPECT_EQ(plain->dropped > 0, expect_drops);
  const auto gradients = gradients_of(*plain);

  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    auto layer = seeded(3, [&] { return nn::DistributedExperts(options); });
    expect_parts_of(*layer, parameters_of(*plain));
    auto own = own_part(parallel, x.detach(), samples).clone().requires_grad_();
    const auto [result, balance] = layer(own);
    expect_close(result, own_part(parallel, y, samples), "output");
    expect_close(balance, losses[setting.prescaled ? 0 : parallel.rank()], "load-balancing loss");
    ((result * own_part(parallel, weights, samples)).sum() + balance * 0.7).backward();
    expect_close(own.grad(), own_part(parallel, x.grad(), samples), "input gradient");
    expect_gradients(parallel, *layer, gradients);
  });
}

Options small_experts() {
  Options options;
  options.hidden_size = 6;
  options.intermediate_size = 10;
  options.num_experts = 5; // tp 2: 3 and 2, tp 4: 2, 1, 1, 1
  options.initializer_range = 0.5;
  return options;
}

TEST_P(Experts, EqualTheLoopWithoutLimit) {
  auto options = small_experts();
  options.capacity_factor = 0;
  compare_experts(GetParam(), options, false);
}

TEST_P(Experts, EqualTheLoopWhenPlacesRunOut) {
  auto options = small_experts();
  options.capacity_factor = 0.5;
  compare_experts(GetParam(), options, true);
}

TEST_P(Experts, OneExpertATokenAndItsGateAsItIs) {
  auto options = small_experts();
  options.top_k = 1;
  options.normalize_gates = false;
  options.capacity_factor = 0;
  compare_experts(GetParam(), options, false);
}

TEST_P(Experts, BytesFollowTheFormulas) {
  const Setting setting = GetParam();
  auto options = small_experts();
  options.num_experts = 4;
  options.top_k = 2;
  options.capacity_factor = 1; // 8 tokens: 4 places an expert
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    const std::int64_t n = parallel.size();
    auto layer = seeded(3, [&] { return nn::DistributedExperts(options); });
    auto x = fixed_random({8, 6}, 4).requires_grad_();
    auto& bytes = parallel.group->traffic().bytes;
    std::int64_t before = bytes;
    const auto y = std::get<0>(layer(x));
    const std::int64_t table = 4 * 4 * 6 * 4; // experts, places, width, f32
    const std::int64_t tokens = 8 * 6 * 4;
    const std::int64_t there_and_back = 2 * (n - 1) * table / n;
    const std::int64_t reduced = 2 * (n - 1) * tokens / n;
    EXPECT_EQ(
        bytes - before,
        n == 1              ? 0
        : setting.prescaled ? reduced
                            : there_and_back + (n - 1) * 8);
    before = bytes;
    y.sum().backward();
    if (!setting.prescaled) {
      EXPECT_EQ(bytes - before, there_and_back);
    }
  });
}

TEST(ExpertErrors, SayWhatWorks) {
  auto options = small_experts();
  options.top_k = 6;
  EXPECT_THROW(nn::DistributedExperts{options}, ConfigError);
  options = small_experts();
  options.num_experts = 2;
  on_ranks({4}, [&](const nn::TensorParallel&) {
    EXPECT_THROW(nn::DistributedExperts{options}, ShapeError);
  });
  nn::DistributedExperts layer(small_experts());
  EXPECT_THROW(layer(torch::ones({2, 5})), ShapeError);
}

} // namespace
} // namespace tessera::testing
