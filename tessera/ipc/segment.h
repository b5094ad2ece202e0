#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::ipc {

/// How another process of the node finds a segment and knows that it is the right one.
struct SegmentAddress {
  int process = 0;
  int descriptor = -1;
  std::size_t bytes = 0;
  std::uint64_t nonce = 0; // is stored in the segment too

  /// The address as it travels to others. Throws: CommError when there are not four numbers.
  std::vector<std::int64_t> to_numbers() const;
  static SegmentAddress from_numbers(const std::vector<std::int64_t>& numbers);
};

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
  /// Throws: CommError naming the process and the reason, also when other memory is found there.
  static Segment open(const SegmentAddress& address);
  /// Private memory of this process with the same interface, for in-process
  /// worlds (tests, sanitizers).
  static Segment heap(std::size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  /// Begins on a page.
  std::byte* data() const {
    return data_;
  }
  std::size_t size() const {
    return bytes_;
  }
  /// Returns the address under which others open the segment; valid while the maker lives and holds
  /// the segment.
  SegmentAddress address() const;

 private:
  void map(int fd, std::size_t bytes);
  void release() noexcept;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int fd_ = -1; // of the maker
  bool heap_ = false;
};

} // namespace tessera::ipc
