#pragma once

#include <cstdint>

namespace tessera {

/// The bytes of one tensor, or buffer of tensors, that lies in memory which this library has mapped
/// itself. libtorch's allocator does not make such memory, so who counts tensors there misses it.
/// An object adds its bytes to those of the process and takes them away at its end.
/// Threads: any.
class MappedBytes {
 public:
  explicit MappedBytes(std::int64_t bytes = 0);
  ~MappedBytes();
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  void resize(std::int64_t bytes);
  std::int64_t bytes() const {
    return bytes_;
  }

  /// Returns the bytes of all objects of the process.
  static std::int64_t of_process();

  using Observer = void (*)(std::int64_t change);
  /// Calls `observer` with the bytes of now, and from then on with each change, on the thread that
  /// makes it. One observer a process. Threads: before others make tensors.
  static void observe(Observer observer);

 private:
  std::int64_t bytes_;
};

} // namespace tessera
