#include "tessera/half/bf16_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/tensor/bf16.h"

namespace tessera::half {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr std::int64_t kNumbers = 1 << 16; // of 16 bits
constexpr std::int64_t kGrain = 1 << 14; // elements of a task of a core

using Table = std::vector<BFloat16>; // by the bits of a number

/// Every number of 16 bits, at the place that its bits name.
Tensor every_number() {
  const Tensor numbers = at::empty({kNumbers}, at::kBFloat16);
  auto* data = numbers.data_ptr<BFloat16>();
  for (std::int64_t i = 0; i < kNumbers; ++i) {
    data[i] = BFloat16(static_cast<std::uint16_t>(i), BFloat16::from_bits());
  }
  return numbers;
}

bool same_bits(const Tensor& one, const Tensor& other) {
  const Tensor differ = one.view(at::kShort) != other.view(at::kShort);
  return !(differ & ~(one.isnan() & other.isnan())).any().item<bool>();
}

Table table_of(const Tensor& results) {
  const auto* data = results.data_ptr<BFloat16>();
  return {data, data + kNumbers};
}

/// Sets y to the entries of x.
void look_up(const Table& table, const BFloat16* x, BFloat16* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = table[x[i].x];
  }
}

/// Sets y to y times g, rounded.
[[gnu::always_inline]] inline void multiply(const BFloat16* g, BFloat16* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = rounded_to_bf16(static_cast<float>(g[i]) * static_cast<float>(y[i]));
  }
}

/// A row of a norm: what each of its numbers is multiplied by, and what is added then.
struct Row {
  const BFloat16* x;
  float scale;
  float shift;
  const float* weight;
  const float* bias;
  BFloat16* y;
  std::int64_t size;
};

[[gnu::always_inline]] inline void normalize(const Row& row) {
  for (std::int64_t i = 0; i < row.size; ++i) {
    const float number = static_cast<float>(row.x[i]) * row.scale + row.shift;
    row.y[i] = rounded_to_bf16(number * row.weight[i] + row.bias[i]);
  }
}

#if defined(__x86_64__)
// In instructions for eight f32 at a time, which this project's programs do not require of a
// processor; not those that multiply and add at once, which round once where libtorch rounds twice.
[[gnu::target("avx2")]] void multiply_wide(const BFloat16* g, BFloat16* y, std::int64_t count) {
  multiply(g, y, count);
}
[[gnu::target("avx2")]] void normalize_wide(const Row& row) {
  normalize(row);
}
bool is_wide() {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  return wide;
}
#endif

void multiply_fast(const BFloat16* g, BFloat16* y, std::int64_t count) {
#if defined(__x86_64__)
  if (is_wide()) {
    multiply_wide(g, y, count);
    return;
  }
#endif
  multiply(g, y, count);
}

void normalize_fast(const Row& row) {
#if defined(__x86_64__)
  if (is_wide()) {
    normalize_wide(row);
    return;
  }
#endif
  normalize(row);
}

/// libtorch's results for all numbers of 16 bits.
struct GeluTables {
  Table results;
  Table derivatives; // for a gradient of one
  bool are_exact = false;

  GeluTables() {
    const Tensor x = every_number();
    const Tensor y = at::cpu::gelu(x, "tanh");
    const Tensor slope = at::cpu::gelu_backward(at::ones_like(x), x, "tanh");
    results = table_of(y);
    derivatives = table_of(slope);
    // Single numbers, as at the end of a tensor, must have the results of several at a time.
    const auto singly = [](const Tensor& tensor) {
      return at::stack({tensor, tensor}, 1).select(1, 0);
    };
    are_exact = same_bits(y, at::cpu::gelu(singly(x), "tanh").contiguous());
    for (const double size : {1e-3, 0.7, -3.0, 300.0}) {
      // Other mantissas beside each number: shifted by a prime.
      const Tensor g = (at::arange(kNumbers, at::kFloat) * 7919).sin().mul(size).to(at::kBFloat16);
      const Tensor wanted = at::cpu::gelu_backward(g, x, "tanh");
      const Tensor got = at::empty_like(x);
      look_up(derivatives, x.data_ptr<BFloat16>(), got.data_ptr<BFloat16>(), kNumbers);
      multiply_fast(g.data_ptr<BFloat16>(), got.data_ptr<BFloat16>(), kNumbers);
      are_exact =
          are_exact && same_bits(wanted, got) &&
          same_bits(wanted, at::cpu::gelu_backward(singly(g), singly(x), "tanh").contiguous());
    }
  }
};

const GeluTables& gelu_tables() {
  static const GeluTables tables;
  return tables;
}

bool norms_follow_from_rows() {
  static const bool follow = [] {
    constexpr std::int64_t kRows = 37;
    bool exact = true;
    for (const std::int64_t size : {5, 96, 1024}) {
      const auto numbers = [&](std::int64_t count, double step, double mean) {
        return (at::arange(count, at::kFloat) * step).sin().mul(2).add(mean).to(at::kBFloat16);
      };
      const Tensor x = numbers(kRows * size, 1.7, 0.4).view({kRows, size});
      const Tensor weight = numbers(size, 2.3, 1);
      const Tensor bias = numbers(size, 0.9, 0);
      const auto [y, mean, rstd] = at::cpu::native_layer_norm(x, {size}, weight, bias, 1e-5);
      exact = exact && mean.scalar_type() == at::kBFloat16 &&
              same_bits(y, normalized(x, {mean, rstd}, weight, bias));
    }
    return exact;
  }();
  return follow;
}

bool is_plain(const Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kBFloat16 && tensor.is_contiguous();
}

NormRows no_rows() {
  return {};
}
void keep_no_rows(const NormRows& /*rows*/) {}

// Each by itself, since threads may compute norms while the first region sets the keeper: a thread
// that is in no region gets nothing from either one.
std::atomic<decltype(NormRowsKeeper::given)> given_rows = &no_rows;
std::atomic<decltype(NormRowsKeeper::keep)> keep_rows = &keep_no_rows;

} // namespace

void try_bf16_kernels() {
  const at::NoGradGuard no_grad;
  gelu_tables();
  norms_follow_from_rows();
}

bool gelu_is_tabled(const Tensor& x, bool approximates) {
  return approximates && is_plain(x) && gelu_tables().are_exact;
}

Tensor tabled_gelu(const Tensor& x) {
  const Table& table = gelu_tables().results;
  const Tensor y = at::empty_like(x);
  const auto* from = x.data_ptr<BFloat16>();
  auto* to = y.data_ptr<BFloat16>();
  at::parallel_for(0, x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    look_up(table, from + begin, to + begin, end - begin);
  });
  return y;
}

Tensor tabled_gelu_backward(const Tensor& gradient, const Tensor& x) {
  const Table& table = gelu_tables().derivatives;
  const Tensor y = at::empty_like(x);
  const auto* from = x.data_ptr<BFloat16>();
  const auto* factors = gradient.data_ptr<BFloat16>();
  auto* to = y.data_ptr<BFloat16>();
  constexpr std::int64_t kBlock = 4096; // stays in the first cache between the two loops
  at::parallel_for(0, x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t count = std::min(kBlock, end - i);
      look_up(table, from + i, to + i, count);
      multiply_fast(factors + i, to + i, count);
    }
  });
  return y;
}

bool norm_follows_from_rows(
    const Tensor& x,
    c10::IntArrayRef shape,
    const TorchOptional<Tensor>& weight,
    const TorchOptional<Tensor>& bias) {
  return is_plain(x) && x.numel() > 0 && shape.size() == 1 && weight.has_value() &&
         is_plain(*weight) && bias.has_value() && is_plain(*bias) && norms_follow_from_rows();
}

Tensor normalized(const Tensor& x, const NormRows& rows, const Tensor& weight, const Tensor& bias) {
  const std::int64_t size = weight.numel();
  const std::int64_t count = x.numel() / size;
  if (!is_plain(rows.mean) || !is_plain(rows.rstd) || rows.mean.numel() != count ||
      rows.rstd.numel() != count) {
    throw UserError(
        str("a layer norm of ",
            count,
            " rows was given what was kept of another one: the flow of its region depends on data "
            "that has changed; take its activation checkpointing away"));
  }
  const Tensor y = at::empty_like(x);
  const Tensor wide_weight = weight.to(at::kFloat);
  const Tensor wide_bias = bias.to(at::kFloat);
  const auto* from = x.data_ptr<BFloat16>();
  const auto* mean = rows.mean.data_ptr<BFloat16>();
  const auto* rstd = rows.rstd.data_ptr<BFloat16>();
  auto* to = y.data_ptr<BFloat16>();
  at::parallel_for(0, count, std::max<std::int64_t>(1, kGrain / size), [&](auto begin, auto end) {
    for (std::int64_t i = begin; i < end; ++i) {
      normalize_fast(
          {from + i * size,
           static_cast<float>(rstd[i]),
           static_cast<float>(-rstd[i] * mean[i]), // in bf16, as libtorch has it
           wide_weight.data_ptr<float>(),
           wide_bias.data_ptr<float>(),
           to + i * size,
           size});
    }
  });
  return y;
}

NormRowsKeeper norm_rows_keeper() {
  return {given_rows, keep_rows};
}

void set_norm_rows_keeper(const NormRowsKeeper& keeper) {
  given_rows = keeper.given;
  keep_rows = keeper.keep;
}

} // namespace tessera::half
