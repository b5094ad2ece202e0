#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

constexpr std::uint64_t kHashSeed = 14695981039346656037ULL;

/// Returns the 64-bit FNV-1a hash of `size` bytes, continued from `seed`. It is equal on every
/// rank and machine; it guards against torn files and changed inputs, not against malice.
inline std::uint64_t
hash_bytes(const void* bytes, std::size_t size, std::uint64_t seed = kHashSeed) {
  std::uint64_t hash = seed;
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < size; ++i) {
    hash = (hash ^ at[i]) * 1099511628211ULL;
  }
  return hash;
}

inline std::uint64_t hash_text(std::string_view text, std::uint64_t seed = kHashSeed) {
  return hash_bytes(text.data(), text.size(), seed);
}

/// Returns a hash as sixteen hexadecimal digits.
inline std::string hexadecimal(std::uint64_t hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; hash >>= 4U) {
    text[i] = kDigits[hash & 15U];
  }
  return text;
}

/// Returns the finaliser of SplitMix64 applied to `x`: every input bit reaches every output bit,
/// so near seeds give unlike streams and ids made of ids stay distinct.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

/// The step between the states of a SplitMix64 generator.
constexpr std::uint64_t kMixStep = 0x9e3779b97f4a7c15ULL;

} // namespace tessera
