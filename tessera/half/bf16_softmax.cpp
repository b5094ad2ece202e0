#include "tessera/half/bf16_softmax.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/Parallel.h>

#include <dlfcn.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::half {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr std::int64_t kVector = 16; // numbers of the widest vector of f32

/// Rows of as many numbers, one behind the other.
struct Rows {
  const BFloat16* x;
  BFloat16* y;
  std::int64_t count;
  std::int64_t size;
  float* factors; // of each row, by which its exponentials are multiplied; nullptr: not wanted
};

/// Sets y to the softmax of x. Returns false where a row has no finite sum; y is anything then.
using Softmax = bool (*)(const Rows& rows);

#if defined(__x86_64__)

// Vectors of f32, as libtorch computes them; the instructions are not required of a processor.
#define TESSERA_EIGHT [[gnu::target("avx2")]]
#define TESSERA_SIXTEEN [[gnu::target("avx512f,avx512bw,avx512vl")]]

template <int kSize>
struct Vectors {
  using Floats [[gnu::vector_size(4 * kSize)]] = float;
  using Words [[gnu::vector_size(4 * kSize)]] = std::uint32_t;
  using Halves [[gnu::vector_size(2 * kSize)]] = std::uint16_t;
  using Signed [[gnu::vector_size(2 * kSize)]] = std::int16_t;
};

// The exponentials of the library that libtorch has loaded for its own: others differ in bits.
struct Exponentials {
  __m256 (*eight)(__m256) = nullptr;
  __m512 (*sixteen)(__m512) = nullptr;
};

const Exponentials& exponentials() {
  static const Exponentials loaded = {
      reinterpret_cast<__m256 (*)(__m256)>(dlsym(RTLD_DEFAULT, "Sleef_expf8_u10")),
      reinterpret_cast<__m512 (*)(__m512)>(dlsym(RTLD_DEFAULT, "Sleef_expf16_u10"))};
  return loaded;
}

/// Sets y to the exponentials of x, where one of them is not 0.
TESSERA_EIGHT inline void exponential(const Vectors<8>::Floats& x, Vectors<8>::Floats& y) {
  constexpr float kLeast = -104; // the exponential of all below it is 0 in f32
  if (_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(kLeast), _CMP_LT_OQ)) != 0xFF) {
    y = exponentials().eight(x);
  }
}
TESSERA_SIXTEEN inline void exponential(const Vectors<16>::Floats& x, Vectors<16>::Floats& y) {
  constexpr float kLeast = -104;
  if (_mm512_cmp_ps_mask(x, _mm512_set1_ps(kLeast), _CMP_LT_OQ) != 0xFFFF) {
    y = exponentials().sixteen(x);
  }
}

/// Sets y to the numbers of x from the first on.
template <int kSize>
[[gnu::always_inline]] inline void load(const BFloat16* x, typename Vectors<kSize>::Floats& y) {
  typename Vectors<kSize>::Halves bits;
  std::memcpy(&bits, x, sizeof(bits));
  const auto words = __builtin_convertvector(bits, typename Vectors<kSize>::Words) << 16;
  std::memcpy(&y, &words, sizeof(y));
}

/// Sets y to x, all finite, each rounded to the nearest, and where two are, the even one.
template <int kSize>
[[gnu::always_inline]] inline void store(const typename Vectors<kSize>::Floats& x, BFloat16* y) {
  typename Vectors<kSize>::Words words;
  std::memcpy(&words, &x, sizeof(words));
  words = (words + 0x7FFF + ((words >> 16) & 1)) >> 16;
  const auto bits = __builtin_convertvector(words, typename Vectors<kSize>::Halves);
  std::memcpy(y, &bits, sizeof(bits));
}

/// The largest number of a row, by the order that the bits of numbers have as integers.
template <int kSize>
[[gnu::always_inline]] inline float largest(const BFloat16* x, std::int64_t size) {
  using Signed = typename Vectors<kSize>::Signed;
  Signed most = {};
  most += INT16_MIN;
  for (std::int64_t i = 0; i < size; i += kSize) {
    Signed bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    bits ^= (bits >> 15) & 0x7FFF;
    most = bits > most ? bits : most;
  }
  std::int16_t found = most[0];
  for (int i = 1; i < kSize; ++i) {
    found = std::max(found, static_cast<std::int16_t>(most[i]));
  }
  found = static_cast<std::int16_t>(found ^ ((found >> 15) & 0x7FFF)); // back
  return {BFloat16(static_cast<std::uint16_t>(found), BFloat16::from_bits())};
}

/// The sum of the numbers of vectors in which a row was summed up, halves added to halves.
template <std::size_t kLanes, typename Vector>
[[gnu::always_inline]] inline float sum_of(const Vector& sums) {
  std::array<float, kLanes> lanes;
  std::memcpy(lanes.data(), &sums, sizeof(lanes));
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

/// Computes `kSize` numbers at a time, and sums them up `kLanes` at a time, as libtorch does.
template <int kSize, int kLanes>
[[gnu::always_inline]] inline bool softmax_of_rows(const Rows& rows) {
  using Floats = typename Vectors<kSize>::Floats;
  using Lanes = typename Vectors<kLanes>::Floats;
  const std::int64_t size = rows.size;
  std::vector<float> row(static_cast<std::size_t>(size));
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const BFloat16* x = rows.x + r * size;
    const float most = largest<kSize>(x, size);
    Lanes sums = {};
    for (std::int64_t i = 0; i < size; i += kSize) {
      Floats number;
      load<kSize>(x + i, number);
      number -= most;
      Floats result = {};
      exponential(number, result);
      std::memcpy(row.data() + i, &result, sizeof(result));
      std::array<Lanes, kSize / kLanes> parts;
      std::memcpy(parts.data(), &result, sizeof(result));
      for (const Lanes& part : parts) {
        sums += part;
      }
    }
    const float sum = sum_of<kLanes>(sums);
    if (!std::isfinite(sum)) {
      return false;
    }
    const float factor = 1 / sum;
    if (rows.factors != nullptr) {
      rows.factors[r] = factor;
    }
    for (std::int64_t i = 0; i < size; i += kSize) {
      Floats number;
      std::memcpy(&number, row.data() + i, sizeof(number));
      store<kSize>(number * factor, rows.y + r * size + i);
    }
  }
  return true;
}

TESSERA_EIGHT bool by_eight(const Rows& rows) {
  return softmax_of_rows<8, 8>(rows);
}
template <int kLanes>
TESSERA_SIXTEEN bool by_sixteen(const Rows& rows) {
  return softmax_of_rows<16, kLanes>(rows);
}

std::vector<Softmax> candidates() {
  std::vector<Softmax> all;
  if (exponentials().sixteen != nullptr && __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    all.push_back(&by_sixteen<8>);
    all.push_back(&by_sixteen<16>);
  }
  if (exponentials().eight != nullptr && __builtin_cpu_supports("avx2") != 0) {
    all.push_back(&by_eight);
  }
  return all;
}

#else

std::vector<Softmax> candidates() {
  return {}; // libtorch's own is used
}

#endif

/// Returns an undefined tensor where a row has no finite sum.
Tensor softmax_by(Softmax softmax, const Tensor& x, float* factors = nullptr) {
  constexpr std::int64_t kGrain = 1 << 14; // numbers of a task of a core
  const std::int64_t size = x.size(-1);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / size);
  const Tensor y = at::empty_like(x);
  const auto* from = x.data_ptr<BFloat16>();
  auto* to = y.data_ptr<BFloat16>();
  std::atomic<bool> are_finite = true;
  at::parallel_for(0, x.numel() / size, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * size;
    float* of_these = factors == nullptr ? nullptr : factors + begin;
    if (!softmax({from + first, to + first, end - begin, size, of_these})) {
      are_finite = false;
    }
  });
  return are_finite ? y : Tensor();
}

/// Whether it has the bits of libtorch's, which are those of f32, rounded. Of sums in another order
/// nearly all results round to the same bf16; so the factors are compared, which are f32.
bool has_bits_of_libtorch(Softmax softmax) {
  constexpr std::int64_t kCount = 64;
  for (const std::int64_t size : {16, 48, 96, 512}) {
    const Tensor numbers = (at::arange(kCount * size, at::kFloat) * 1.7).sin();
    const Tensor x = numbers.mul(4).to(at::kBFloat16).view({kCount, size});
    x.select(1, 1).mul_(100); // beside which the others vanish in half of the rows
    const Tensor factors = at::empty({kCount});
    const Tensor y = softmax_by(softmax, x, factors.data_ptr<float>());
    // The largest number of a row has the exponential 1.
    if (!y.defined() || !factors.equal(at::cpu::_softmax(x.to(at::kFloat), -1, false).amax(-1)) ||
        !y.view(at::kShort).equal(at::cpu::_softmax(x, -1, false).view(at::kShort))) {
      return false;
    }
  }
  return true;
}

/// The first that has libtorch's bits, or nullptr.
Softmax of_libtorch() {
  static const Softmax found = [] {
    for (const Softmax softmax : candidates()) {
      if (has_bits_of_libtorch(softmax)) {
        return softmax;
      }
    }
    return static_cast<Softmax>(nullptr);
  }();
  return found;
}

} // namespace

void try_bf16_softmax() {
  const at::NoGradGuard no_grad;
  of_libtorch();
}

bool softmax_is_quick(const Tensor& x, std::int64_t dim) {
  return x.scalar_type() == at::kBFloat16 && x.is_contiguous() && x.dim() > 0 && x.numel() > 0 &&
         (dim == -1 || dim == x.dim() - 1) && x.size(-1) % kVector == 0 && of_libtorch() != nullptr;
}

Tensor quick_softmax(const Tensor& x) {
  return softmax_by(of_libtorch(), x);
}

} // namespace tessera::half
