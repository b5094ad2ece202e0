#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tessera::comm::shm {

/// Memory that several processes of a node map, without a name: a memfd of its
/// maker, opened by others through `/proc/<pid>/fd/<fd>`. Nothing of it can be
/// left behind, whichever way its processes end.
/// Threads: any thread (the object itself is not shared between threads).
class Segment {
 public:
  Segment() = default;
  /// Zero-filled. Throws: CommError with the system's reason.
  static Segment create(std::size_t bytes);
  /// Maps another process's segment; its maker must still hold it.
  /// Throws: CommError naming pid and reason.
  static Segment open(int pid, int fd, std::size_t bytes);
  /// Private memory of this process with the same interface, for in-process
  /// worlds (tests, sanitizers).
  static Segment heap(std::size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::byte* data() const {
    return data_;
  }
  std::size_t size() const {
    return bytes_;
  }
  /// The file descriptor that others open; -1 when not the maker.
  int fd() const {
    return fd_;
  }

 private:
  void release() noexcept;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int fd_ = -1;
  bool heap_ = false;
};

/// Sleeps until `word` differs from `seen`, it is woken, or `timeout` passes;
/// may return early. Works between processes on a shared mapping.
void wait_while_equal(
    std::atomic<std::uint32_t>& word,
    std::uint32_t seen,
    std::chrono::nanoseconds timeout);

/// Wakes all waiters of `word`; call after changing it.
void wake_all(std::atomic<std::uint32_t>& word);

} // namespace tessera::comm::shm
