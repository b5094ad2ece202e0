#include "tessera/transport/shm/ring.h"

#include <cstring>

#include "tessera/base/error.h"

namespace tessera::transport::shm {

namespace {

// Frames start at multiples of the frame's size, so one always fits before
// the ring's end.
std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + sizeof(Frame) - 1) / sizeof(Frame) * sizeof(Frame);
}

} // namespace

bool RingWriter::room(std::uint64_t need) {
  if (written_ + need - read_ <= kRingBytes) {
    return true;
  }
  read_ = head_->read.load(std::memory_order_acquire);
  if (written_ + need - read_ <= kRingBytes) {
    return true;
  }
  // This is sequentially consistent with RingReader::pop: either pop sees the flag, or this second
  // look sees the room that it made.
  head_->writer_waits.store(1);
  read_ = head_->read.load();
  if (written_ + need - read_ <= kRingBytes) {
    head_->writer_waits.store(0);
    return true;
  }
  return false;
}

bool RingWriter::write(
    FrameKind kind,
    const std::byte* message,
    std::uint64_t bytes,
    std::uint64_t offset) {
  const std::uint64_t body = kind == FrameKind::kMessage ? bytes : 0;
  TESSERA_CHECK(body <= kLargestFramed, body, " bytes");
  const std::uint64_t need = rounded(sizeof(Frame) + body);
  std::uint64_t at = written_ % kRingBytes;
  const std::uint64_t to_end = kRingBytes - at;
  const std::uint64_t pad = need > to_end ? to_end : 0;
  if (!room(pad + need)) {
    return false;
  }
  if (pad != 0) {
    Frame wrap;
    wrap.skip = pad;
    std::memcpy(data_ + at, &wrap, sizeof(wrap));
    at = 0;
  }
  Frame frame;
  frame.kind = kind;
  frame.bytes = bytes;
  frame.offset = offset;
  frame.skip = need;
  std::memcpy(data_ + at, &frame, sizeof(frame));
  if (body != 0) {
    std::memcpy(data_ + at + sizeof(frame), message, body);
  }
  written_ += pad + need;
  head_->written.store(written_, std::memory_order_release);
  return true;
}

bool RingReader::peek(Frame& frame, const std::byte*& message) {
  for (;;) {
    if (read_ == written_) {
      written_ = head_->written.load(std::memory_order_acquire);
      if (read_ == written_) {
        return false;
      }
    }
    const std::uint64_t at = read_ % kRingBytes;
    std::memcpy(&frame, data_ + at, sizeof(frame));
    const bool framed = frame.kind == FrameKind::kMessage;
    if (frame.skip > kRingBytes - at || frame.skip > written_ - read_ ||
        frame.skip < sizeof(Frame) || frame.skip % sizeof(Frame) != 0 ||
        frame.kind < FrameKind::kWrap || frame.kind > FrameKind::kChannel ||
        (framed && frame.bytes > frame.skip - sizeof(Frame))) {
      throw CommError("a shared-memory ring is damaged");
    }
    if (frame.kind != FrameKind::kWrap) {
      message = data_ + at + sizeof(Frame);
      skip_ = frame.skip;
      return true;
    }
    read_ += frame.skip;
  }
}

bool RingReader::pop() {
  read_ += skip_;
  skip_ = 0;
  head_->read.store(read_);
  return head_->writer_waits.load() != 0 && head_->writer_waits.exchange(0) != 0;
}

} // namespace tessera::transport::shm
