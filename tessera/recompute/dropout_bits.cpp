#include "tessera/recompute/dropout_bits.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "tessera/tensor/bf16.h"

namespace tessera::recompute {

namespace {

constexpr std::int64_t kBits = 64;
constexpr std::int64_t kGrain = 512; // words of a task of a core
constexpr std::int64_t kHeader = 1;

std::int64_t words_of(std::int64_t elements) {
  return (elements + kBits - 1) / kBits;
}

/// The bits of up to 64 elements. The loops are such that a compiler takes several elements at a
/// time: comparisons to bytes, then a product that moves the lowest bit of each of eight bytes.
template <typename T>
std::uint64_t word_of(const T* mask, std::int64_t count) {
  std::array<std::uint8_t, kBits> stays{};
  if (count == kBits) {
    for (std::int64_t i = 0; i < kBits; ++i) {
      stays[static_cast<std::size_t>(i)] = mask[i] != T(0) ? 1 : 0;
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      stays[static_cast<std::size_t>(i)] = mask[i] != T(0) ? 1 : 0;
    }
  }
  std::uint64_t word = 0;
  for (std::size_t byte = 0; byte < 8; ++byte) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, &stays[8 * byte], sizeof(eight));
    word |= ((eight * 0x0102040810204080U) >> 56U) << (8 * byte);
  }
  return word;
}

/// Bits from one of them on.
struct Words {
  const std::int64_t* words;
  std::int64_t first;

  /// The `count` bits, at most 64, from the one with this number on.
  std::uint64_t at(std::int64_t bit, std::int64_t count) const {
    const std::int64_t place = (first + bit) / kBits;
    const auto shift = static_cast<std::uint64_t>((first + bit) % kBits);
    const auto low = static_cast<std::uint64_t>(words[place]) >> shift;
    const bool in_one = static_cast<std::int64_t>(shift) + count <= kBits;
    return in_one ? low : low | static_cast<std::uint64_t>(words[place + 1]) << (kBits - shift);
  }
};

/// A number of a wider type in this one, rounded to the nearest, and where two are, the even one.
template <typename T, typename Number>
T narrow(Number number) {
  return static_cast<T>(number);
}

template <>
inline c10::BFloat16 narrow<c10::BFloat16, float>(float number) {
  return rounded_to_bf16(number);
}

/// The numbers with one bit, in order: shifts by unlike counts are no instruction of every
/// processor.
constexpr std::array<std::uint32_t, 32> kBitOf = [] {
  std::array<std::uint32_t, 32> bits{};
  for (std::uint32_t i = 0; i < 32; ++i) {
    bits[i] = std::uint32_t(1) << i;
  }
  return bits;
}();

/// Sets `count` values, at most 32, to their products with `kept` where their bit is set, else with
/// 0. The loop has no branch, so that a compiler takes several at a time.
template <typename T, typename Number>
[[gnu::always_inline]] inline void
multiply(T* values, std::uint32_t bits, Number kept, std::int64_t count) {
  for (std::int64_t k = 0; k < count; ++k) {
    const Number factor = (bits & kBitOf[static_cast<std::size_t>(k)]) != 0 ? kept : Number(0);
    values[k] = narrow<T>(static_cast<Number>(values[k]) * factor);
  }
}

/// Sets `count` values of `to`, at most those of a word, to those of `from` times `kept` or 0.
/// `Known` is their number where the compiler is to know it, else 0. The values go by way of the
/// stack: `from` may be `to`, which would keep the compiler from taking several at a time.
template <std::int64_t Known, typename T, typename Number>
[[gnu::always_inline]] inline void
multiply_word(const T* from, std::uint64_t word, Number kept, T* to, std::int64_t count) {
  constexpr std::int64_t kHalf = kBits / 2;
  const std::int64_t values_count = Known > 0 ? Known : count;
  std::array<T, kBits> values;
  std::copy_n(from, values_count, values.begin());
  for (std::int64_t k = 0; k < values_count; k += kHalf) {
    const std::int64_t several = Known > 0 ? kHalf : std::min(kHalf, values_count - k);
    multiply(values.data() + k, static_cast<std::uint32_t>(word >> k), kept, several);
  }
  std::copy_n(values.begin(), values_count, to);
}

/// `to` is to be `from` times the mask.
template <typename T, typename Number>
struct Product {
  const T* from;
  Words mask;
  Number kept;
  std::int64_t elements;
  T* to;
};

/// Computes the words [begin, end) of a product.
template <typename T, typename Number>
[[gnu::always_inline]] inline void
multiply_words(const Product<T, Number>& product, std::int64_t begin, std::int64_t end) {
  const auto& [from, mask, kept, elements, to] = product;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t begins = i * kBits;
    const std::int64_t left = elements - begins;
    if (left >= kBits) {
      multiply_word<kBits>(from + begins, mask.at(begins, kBits), kept, to + begins, kBits);
    } else {
      multiply_word<0>(from + begins, mask.at(begins, left), kept, to + begins, left);
    }
  }
}

#if defined(__x86_64__)
/// multiply_words in instructions for eight f32 at a time, which this project's programs do not
/// require of a processor.
template <typename T, typename Number>
[[gnu::target("avx2")]] void
multiply_words_wide(const Product<T, Number>& product, std::int64_t begin, std::int64_t end) {
  multiply_words(product, begin, end);
}
/// The same for sixteen at a time.
template <typename T, typename Number>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void
multiply_words_widest(const Product<T, Number>& product, std::int64_t begin, std::int64_t end) {
  multiply_words(product, begin, end);
}
#endif

/// multiply_words as this processor does it best. The bits of the result are the same.
template <typename T, typename Number>
void multiply_words_fast(const Product<T, Number>& product, std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
  static const bool is_widest = __builtin_cpu_supports("avx512f") != 0 &&
                                __builtin_cpu_supports("avx512bw") != 0 &&
                                __builtin_cpu_supports("avx512vl") != 0;
  static const bool is_wide = __builtin_cpu_supports("avx2") != 0;
  if (is_widest) {
    multiply_words_widest(product, begin, end);
    return;
  }
  if (is_wide) {
    multiply_words_wide(product, begin, end);
    return;
  }
#endif
  multiply_words(product, begin, end);
}

} // namespace

at::Tensor bits_of_mask(const at::Tensor& mask, double divisor) {
  const at::Tensor rows = mask.contiguous();
  const std::int64_t elements = rows.numel();
  const at::Tensor bits = at::empty({kHeader + words_of(elements)}, at::kLong);
  auto* words = bits.data_ptr<std::int64_t>();
  double kept = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, rows.scalar_type(), "bits_of_mask", [&] {
        const auto* data = rows.data_ptr<scalar_t>();
        const auto* other = std::find_if(
            data, data + elements, [](scalar_t value) { return value != scalar_t(0); });
        kept = other == data + elements ? 0 : static_cast<double>(*other);
        at::parallel_for(0, words_of(elements), kGrain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t first = i * kBits;
            const std::uint64_t word = word_of(data + first, std::min(kBits, elements - first));
            std::memcpy(&words[kHeader + i], &word, sizeof(word));
          }
        });
      });
  kept = at::full({1}, kept, mask.options()).div_(divisor).item<double>();
  std::memcpy(words, &kept, sizeof(kept));
  return bits;
}

bool are_bits_of(const at::Tensor& bits, std::int64_t elements) {
  return bits.scalar_type() == at::kLong && bits.dim() == 1 &&
         bits.numel() == kHeader + words_of(elements);
}

void multiply_by_mask(
    const at::Tensor& x,
    const at::Tensor& bits,
    std::int64_t first,
    const at::Tensor& y) {
  const std::int64_t elements = x.numel();
  const auto* words = bits.data_ptr<std::int64_t>();
  double kept = 0;
  std::memcpy(&kept, words, sizeof(kept));
  const Words mask{words + kHeader, first};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "times_mask", [&] {
    using Number = at::opmath_type<scalar_t>;
    const Product<scalar_t, Number> product = {
        x.data_ptr<scalar_t>(),
        mask,
        static_cast<Number>(static_cast<scalar_t>(kept)),
        elements,
        y.data_ptr<scalar_t>()};
    at::parallel_for(0, words_of(elements), kGrain, [&](std::int64_t begin, std::int64_t end) {
      multiply_words_fast(product, begin, end);
    });
  });
}

at::Tensor times_mask(const at::Tensor& x, const at::Tensor& bits) {
  const at::Tensor y = at::empty_like(x);
  multiply_by_mask(x, bits, 0, y);
  return y;
}

} // namespace tessera::recompute
