#include "tessera/comm/shared_memory/segment.h"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fcntl.h>
#include <linux/futex.h>

#include "tessera/base/error.h"

namespace tessera::comm::shm {

namespace {

constexpr std::size_t kPageBytes = 4096;

std::string reason() {
  return std::string(std::strerror(errno));
}

std::byte* map(int fd, std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    throw CommError(str("shared memory of ", bytes, " bytes could not be mapped: ", reason()));
  }
  return static_cast<std::byte*>(at);
}

} // namespace

Segment Segment::create(std::size_t bytes) {
  Segment segment;
  segment.fd_ = ::memfd_create("tessera", MFD_CLOEXEC);
  if (segment.fd_ < 0) {
    throw CommError(str("shared memory could not be made: ", reason()));
  }
  // Pages are given when first written, so a generous size costs nothing.
  if (::ftruncate(segment.fd_, static_cast<off_t>(bytes)) != 0) {
    throw CommError(str("shared memory of ", bytes, " bytes could not be sized: ", reason()));
  }
  segment.data_ = map(segment.fd_, bytes);
  segment.bytes_ = bytes;
  return segment;
}

Segment Segment::open(int pid, int fd, std::size_t bytes) {
  const std::string path = str("/proc/", pid, "/fd/", fd);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) {
    throw CommError(str("shared memory of process ", pid, " could not be opened: ", reason()));
  }
  Segment segment;
  try {
    segment.data_ = map(opened, bytes);
  } catch (...) {
    ::close(opened);
    throw;
  }
  ::close(opened); // the mapping stays
  segment.bytes_ = bytes;
  return segment;
}

Segment Segment::heap(std::size_t bytes) {
  Segment segment;
  const std::size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* at = std::aligned_alloc(kPageBytes, rounded);
  if (at == nullptr) {
    throw CommError(str("no memory for ", bytes, " bytes"));
  }
  std::memset(at, 0, rounded);
  segment.data_ = static_cast<std::byte*>(at);
  segment.bytes_ = bytes;
  segment.heap_ = true;
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      heap_(other.heap_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    fd_ = std::exchange(other.fd_, -1);
    heap_ = other.heap_;
  }
  return *this;
}

Segment::~Segment() {
  release();
}

void Segment::release() noexcept {
  if (data_ != nullptr) {
    if (heap_) {
      std::free(data_);
    } else {
      ::munmap(data_, bytes_);
    }
    data_ = nullptr;
  }
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

void wait_while_equal(
    std::atomic<std::uint32_t>& word,
    std::uint32_t seen,
    std::chrono::nanoseconds timeout) {
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec limit{};
  limit.tv_sec = seconds.count();
  limit.tv_nsec = (timeout - seconds).count();
  // Not FUTEX_PRIVATE: the word may lie in a mapping that processes share.
  ::syscall(
      SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(
      SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace tessera::comm::shm
