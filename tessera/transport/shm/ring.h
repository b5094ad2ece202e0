#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/transport/shm/layout.h"

namespace tessera::transport::shm {

/// Says what a frame of the ring holds.
enum class FrameKind : std::uint32_t {
  kWrap = 1, // nothing: go on at the ring's start
  kMessage, // the message follows
  kArena, // the message lies in the sender's arena, at `offset`
  kChannel, // the message comes through the channel
};

struct Frame {
  FrameKind kind = FrameKind::kWrap;
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0; // of the message
  std::uint64_t offset = 0;
  std::uint64_t skip = 0; // frame, message and padding
};
static_assert(sizeof(Frame) == 32);

/// The largest message that may lie in the ring itself.
inline constexpr std::size_t kLargestFramed = kRingBytes / 4;

/// Sending end of a single-producer, single-consumer ring of frames in shared
/// memory; never waits. Threads: one at a time.
class RingWriter {
 public:
  RingWriter(RingHead* head, std::byte* data) : head_(head), data_(data) {}

  /// Returns false when there is no room; the reader then raises the writer's thread event as soon
  /// as it has taken a frame. `message` is copied when kind is kMessage.
  bool write(FrameKind kind, const std::byte* message, std::uint64_t bytes, std::uint64_t offset);

 private:
  bool room(std::uint64_t need);
  RingHead* head_;
  std::byte* data_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0; // last seen
};

/// Receiving end. Threads: one at a time.
class RingReader {
 public:
  RingReader(RingHead* head, const std::byte* data) : head_(head), data_(data) {}

  /// Reads the next frame, which stays in the ring; returns false when there is none. `message`
  /// points behind the frame when its kind is kMessage.
  /// Throws: CommError when the ring is damaged.
  bool peek(Frame& frame, const std::byte*& message);
  /// Releases the room of the frame last peeked at to the writer. Returns true when the writer
  /// waits for room and its thread event must be raised.
  bool pop();

 private:
  RingHead* head_;
  const std::byte* data_;
  std::uint64_t read_ = 0;
  std::uint64_t written_ = 0; // last seen
  std::uint64_t skip_ = 0;
};

} // namespace tessera::transport::shm
