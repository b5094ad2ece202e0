#include "tessera/ipc/segment.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include <fcntl.h>

#include "tessera/base/error.h"

namespace tessera::ipc {

namespace {

// The page before a segment's data holds its nonce.
constexpr std::size_t kPageBytes = 4096;

std::string reason() {
  return std::string(std::strerror(errno));
}

std::uint64_t& nonce_of(std::byte* data) {
  return *reinterpret_cast<std::uint64_t*>(data - kPageBytes);
}

std::uint64_t draw_nonce() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device() | 1U;
}

} // namespace

std::vector<std::int64_t> SegmentAddress::to_numbers() const {
  return {process, descriptor, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(nonce)};
}

SegmentAddress SegmentAddress::from_numbers(const std::vector<std::int64_t>& numbers) {
  if (numbers.size() != 4) {
    throw CommError(str("the address of a segment has 4 numbers, found ", numbers.size()));
  }
  return {
      static_cast<int>(numbers[0]),
      static_cast<int>(numbers[1]),
      static_cast<std::size_t>(numbers[2]),
      static_cast<std::uint64_t>(numbers[3])};
}

Segment Segment::create(std::size_t bytes) {
  Segment segment;
  segment.fd_ = ::memfd_create("tessera", MFD_CLOEXEC);
  if (segment.fd_ < 0) {
    throw CommError(str("shared memory could not be made: ", reason()));
  }
  // The kernel gives pages when they are first written, so a generous size costs nothing.
  if (::ftruncate(segment.fd_, static_cast<off_t>(kPageBytes + bytes)) != 0) {
    throw CommError(str("shared memory of ", bytes, " bytes could not be sized: ", reason()));
  }
  segment.map(segment.fd_, bytes);
  nonce_of(segment.data_) = draw_nonce();
  return segment;
}

Segment Segment::open(const SegmentAddress& address) {
  const std::string path = str("/proc/", address.process, "/fd/", address.descriptor);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) {
    throw CommError(
        str("shared memory of process ", address.process, " could not be opened: ", reason()));
  }
  Segment segment;
  const off_t size = ::lseek(opened, 0, SEEK_END);
  try {
    // A mapping beyond the end of another file would be a SIGBUS when it is read.
    if (size == static_cast<off_t>(kPageBytes + address.bytes)) {
      segment.map(opened, address.bytes);
    }
  } catch (...) {
    ::close(opened);
    throw;
  }
  ::close(opened); // the mapping stays
  if (segment.data_ == nullptr || nonce_of(segment.data_) != address.nonce) {
    throw CommError(
        str("process ",
            address.process,
            " is another one here than where the peer runs: two nodes or "
            "containers of one host name? Give each its own host name."));
  }
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

SegmentAddress Segment::address() const {
  TESSERA_CHECK(fd_ >= 0, "only the maker knows a segment's address");
  return {::getpid(), fd_, bytes_, nonce_of(data_)};
}

void Segment::map(int fd, std::size_t bytes) {
  void* at = ::mmap(nullptr, kPageBytes + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    throw CommError(str("shared memory of ", bytes, " bytes could not be mapped: ", reason()));
  }
  data_ = static_cast<std::byte*>(at) + kPageBytes;
  bytes_ = bytes;
}

void Segment::release() noexcept {
  if (data_ != nullptr) {
    if (heap_) {
      std::free(data_);
    } else {
      ::munmap(data_ - kPageBytes, kPageBytes + bytes_);
    }
    data_ = nullptr;
  }
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

} // namespace tessera::ipc
