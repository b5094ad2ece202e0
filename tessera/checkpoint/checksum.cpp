#include "tessera/checkpoint/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

static_assert(std::endian::native == std::endian::little, "checkpoints hold little-endian data");

namespace {

// Hexadecimal digits of pi's fraction, made odd: arbitrary constants that are
// evidently not tuned.
constexpr std::array<std::uint64_t, 8> kSeeds = {
    0x243f6a8885a308d3,
    0x13198a2e03707345,
    0xa4093822299f31d1,
    0x082efa98ec4e6c89,
    0x452821e638d01377,
    0xbe5466cf34e90c6d,
    0xc0ac29b7c97c50dd,
    0x3f84d5b5b5470917};

__extension__ using Wide = unsigned __int128;

inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

} // namespace

Checksum::Checksum() : lanes_(kSeeds) {}

void Checksum::add_blocks(const unsigned char* data, std::size_t blocks) {
  auto lanes = lanes_;
  for (; blocks > 0; --blocks, data += kBlockBytes) {
    // Unrolled, the lanes stay in registers.
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kLanes; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + i * sizeof(word), sizeof(word));
      // The rotated lane keeps a product of zero from erasing what came before.
      lanes[i] = fold(lanes[i] ^ word, kSeeds[i]) + std::rotl(lanes[i], 29);
    }
  }
  lanes_ = lanes;
}

void Checksum::update(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  total_bytes_ += bytes;
  if (pending_bytes_ > 0) {
    const std::size_t taken = std::min(bytes, kBlockBytes - pending_bytes_);
    std::copy_n(from, taken, pending_.data() + pending_bytes_);
    pending_bytes_ += taken;
    from += taken;
    bytes -= taken;
    if (pending_bytes_ < kBlockBytes) {
      return;
    }
    add_blocks(pending_.data(), 1);
    pending_bytes_ = 0;
  }
  const std::size_t blocks = bytes / kBlockBytes;
  add_blocks(from, blocks);
  from += blocks * kBlockBytes;
  pending_bytes_ = bytes - blocks * kBlockBytes;
  std::copy_n(from, pending_bytes_, pending_.data());
}

std::uint64_t Checksum::value() const {
  Checksum end = *this;
  if (end.pending_bytes_ > 0) {
    std::fill(
        end.pending_.begin() + static_cast<std::ptrdiff_t>(end.pending_bytes_),
        end.pending_.end(),
        static_cast<unsigned char>(0));
    end.add_blocks(end.pending_.data(), 1);
  }
  // The length distinguishes padding from data.
  std::uint64_t result = total_bytes_;
  for (std::size_t i = 0; i < kLanes; ++i) {
    result = fold(result ^ end.lanes_[i], kSeeds[kLanes - 1 - i]) + std::rotl(end.lanes_[i], 31);
  }
  return fold(result ^ (result >> 32U), kSeeds[0]);
}

std::uint64_t checksum_of(std::string_view bytes) {
  Checksum checksum;
  checksum.update(bytes);
  return checksum.value();
}

std::string to_hex(std::uint64_t value) {
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit) {
    *digit = "0123456789abcdef"[value & 15U];
    value >>= 4U;
  }
  return text;
}

std::uint64_t from_hex(const std::string& text, const std::string& what) {
  static const std::string kDigits = "0123456789abcdef";
  std::uint64_t value = 0;
  bool good = text.size() == 16;
  for (const char digit : text) {
    const auto at = kDigits.find(digit);
    good = good && at != std::string::npos;
    value = (value << 4U) | (at & 15U);
  }
  if (!good) {
    throw CheckpointError(str(what, ": expected 16 hexadecimal digits, found \"", text, "\""));
  }
  return value;
}

} // namespace tessera::checkpoint
