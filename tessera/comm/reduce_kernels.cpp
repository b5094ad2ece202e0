#include "tessera/comm/reduce_kernels.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "tessera/base/error.h"

namespace tessera::comm {

namespace {

// These conversions have no branches, so that the compiler vectorizes the loops below.
struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

inline float widen(BF16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

inline BF16 narrow_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Half of the dropped part, minus one unless the kept part is odd: nearest,
  // ties to even.
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>((is_nan ? bits | 0x400000U : rounded) >> 16)};
}

inline float widen(F16 value) {
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  // Both kinds become an f32 by a product with 2^112 (the difference of the
  // exponents' biases); it is exact, also for subnormals.
  const float scaled =
      std::bit_cast<float>(magnitude << 13) * std::bit_cast<float>(std::uint32_t{127 + 112} << 23);
  // Infinity and NaN keep their mantissa and take f32's largest exponent.
  const std::uint32_t special = (magnitude << 13) | 0x7F800000U;
  const std::uint32_t bits = magnitude >= 0x7C00U ? special : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(bits | sign);
}

inline F16 narrow_f16(float value) {
  const auto all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (all >> 16) & 0x8000U;
  const std::uint32_t magnitude = all & 0x7FFFFFFFU;
  // A normal result gets f16's exponent bias and is rounded to nearest, ties to even.
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  const std::uint32_t normal = (magnitude - (std::uint32_t{112} << 23) + 0xFFFU + odd) >> 13;
  // For a subnormal result (below 2^-14) adding 0.5 lets the adder do the rounding, in units of
  // 2^-24.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
      std::bit_cast<std::uint32_t>(0.5F);
  std::uint32_t result = magnitude < (std::uint32_t{113} << 23) ? subnormal : normal;
  result = result > 0x7C00U ? 0x7C00U : result; // too large: infinity
  const std::uint32_t special = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
  result = magnitude >= 0x7F800000U ? special : result;
  return {static_cast<std::uint16_t>(result | sign)};
}

template <typename T>
inline T widen(T value) {
  return value;
}

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, F16> || std::is_same_v<T, BF16>, float, T>;

template <typename T>
inline T narrow(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, F16>) {
    return narrow_f16(value);
  } else if constexpr (std::is_same_v<T, BF16>) {
    return narrow_bf16(value);
  } else {
    return value;
  }
}

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>; // wraps, where int is undefined
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

/// What is done to a result before it is rounded.
struct AsItIs {
  template <typename T>
  T operator()(T value) const {
    return value;
  }
};

struct Times {
  double scale;
  template <typename T>
  T operator()(T value) const {
    return value * static_cast<T>(scale);
  }
};

// The loop below may be vectorized: out may equal a source, but only element by
// element.
#ifdef __clang__
#define TESSERA_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define TESSERA_VECTORIZE _Pragma("GCC ivdep")
#endif

template <typename T, typename Op, typename Last>
void reduce_two(T* out, const T* a, const T* b, std::int64_t count, Last last) {
  TESSERA_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = narrow<T>(last(Op::apply(widen(a[i]), widen(b[i]))));
  }
}

template <typename T, typename Op, typename Last>
void reduce_four(
    T* out,
    const T* a,
    const T* b,
    const T* c,
    const T* d,
    std::int64_t count,
    Last last) {
  TESSERA_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) {
    const auto ab = Op::apply(widen(a[i]), widen(b[i]));
    const auto abc = Op::apply(ab, widen(c[i]));
    out[i] = narrow<T>(last(Op::apply(abc, widen(d[i]))));
  }
}

template <typename T, typename Op, typename Last>
void reduce_many(T* out, const T* const* sources, int source_count, std::int64_t count, Last last) {
  constexpr std::int64_t kBlock = 1024; // stays in the first-level cache
  Accumulator<T> block[kBlock];
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t length = std::min(kBlock, count - at);
    for (std::int64_t i = 0; i < length; ++i) {
      block[i] = widen(sources[0][at + i]);
    }
    for (int source = 1; source < source_count; ++source) {
      const T* from = sources[source] + at;
      for (std::int64_t i = 0; i < length; ++i) {
        block[i] = Op::apply(block[i], widen(from[i]));
      }
    }
    for (std::int64_t i = 0; i < length; ++i) {
      out[at + i] = narrow<T>(last(block[i]));
    }
  }
}

template <typename T, typename Op, typename Last = AsItIs>
void reduce_as(
    void* out,
    const void* const* sources,
    int source_count,
    std::int64_t count,
    Last last = {}) {
  auto* to = static_cast<T*>(out);
  const auto* from = reinterpret_cast<const T* const*>(sources);
  if (source_count == 2) {
    reduce_two<T, Op>(to, from[0], from[1], count, last);
  } else if (source_count == 4) {
    reduce_four<T, Op>(to, from[0], from[1], from[2], from[3], count, last);
  } else {
    reduce_many<T, Op>(to, from, source_count, count, last);
  }
}

template <typename T>
void reduce_by(
    ReduceOp op,
    void* out,
    const void* const* sources,
    int source_count,
    std::int64_t count,
    double scale) {
  if constexpr (!std::is_integral_v<T>) {
    if (scale != 1) {
      TESSERA_CHECK(op == ReduceOp::kSum, "only a sum is scaled");
      return reduce_as<T, Sum>(out, sources, source_count, count, Times{scale});
    }
  } else {
    TESSERA_CHECK(scale == 1, "integers are not scaled");
  }
  switch (op) {
    case ReduceOp::kSum:
      return reduce_as<T, Sum>(out, sources, source_count, count);
    case ReduceOp::kMax:
      return reduce_as<T, Max>(out, sources, source_count, count);
    case ReduceOp::kMin:
      return reduce_as<T, Min>(out, sources, source_count, count);
  }
}

} // namespace

void reduce(
    DataType type,
    ReduceOp op,
    void* out,
    const void* const* sources,
    int source_count,
    std::int64_t count,
    double scale) {
  TESSERA_CHECK(source_count > 0);
  switch (type) {
    case DataType::kF32:
      return reduce_by<float>(op, out, sources, source_count, count, scale);
    case DataType::kF64:
      return reduce_by<double>(op, out, sources, source_count, count, scale);
    case DataType::kF16:
      return reduce_by<F16>(op, out, sources, source_count, count, scale);
    case DataType::kBF16:
      return reduce_by<BF16>(op, out, sources, source_count, count, scale);
    case DataType::kI32:
      return reduce_by<std::int32_t>(op, out, sources, source_count, count, scale);
    case DataType::kI64:
      return reduce_by<std::int64_t>(op, out, sources, source_count, count, scale);
    case DataType::kU8:
      return reduce_by<std::uint8_t>(op, out, sources, source_count, count, scale);
  }
}

} // namespace tessera::comm
