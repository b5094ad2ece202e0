#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

/// Computes a 64-bit checksum of a stream of bytes, however the stream is cut into updates.
///
/// It has eight lanes, each of which folds the 128-bit product of (lane xor word) and an odd
/// constant back to 64 bits. Eight independent multiplications keep the multiplier busy, so that it
/// runs near memory bandwidth. It detects torn, zeroed and flipped data; it does not protect
/// against an adversary. The value is part of the file format: the same bytes give the same value
/// on any little-endian machine.
///
/// Threads: one object, one thread. Not collective.
class Checksum {
 public:
  Checksum();
  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) {
    update(text.data(), text.size());
  }
  /// Appends the eight bytes of a number.
  void update_number(std::uint64_t number) {
    update(&number, sizeof(number));
  }
  /// Returns the checksum of everything so far; more may follow.
  std::uint64_t value() const;

 private:
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kBlockBytes = kLanes * sizeof(std::uint64_t);

  void add_blocks(const unsigned char* data, std::size_t blocks);

  std::array<std::uint64_t, kLanes> lanes_;
  std::array<unsigned char, kBlockBytes> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

std::uint64_t checksum_of(std::string_view bytes);

/// Returns sixteen hexadecimal digits, the form in which checkpoints write checksums.
std::string to_hex(std::uint64_t value);
/// Parses such digits. Throws: CheckpointError naming `what` when the text is anything else.
std::uint64_t from_hex(const std::string& text, const std::string& what);

} // namespace tessera::checkpoint
