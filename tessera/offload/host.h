#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

/// Memory that costs less than a device's, to which bytes of tensors are moved.
namespace tessera::offload {

/// A piece of a Host's memory. Units: bytes.
struct Place {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// A copy between a tensor and a Host.
/// Threads: the one that began it, or whoever has the baton after it.
class Copy {
 public:
  virtual ~Copy() = default;
  /// Returns whether it has ended, well or not.
  virtual bool done() const = 0;
  /// Blocks until it has ended. Throws: ConfigError with the reason why it failed, each time.
  virtual void wait() = 0;
};

/// The memory, in pieces, and copies to and from it. On a processor it is a file (file_host.h).
/// Copies run beside the caller, those of one direction in the order in which they began.
///
/// Not collective. Threads: one at a time.
class Host {
 public:
  virtual ~Host() = default;

  /// Takes a piece, a free one where there is one. Throws: ConfigError when there is no room.
  virtual Place reserve(std::int64_t bytes) = 0;
  /// Makes it free; no copy uses it any more.
  virtual void give_back(Place place) noexcept = 0;

  /// Begin copies of `memory`, bytes in one dimension that are alive until the copy has ended.
  virtual std::shared_ptr<Copy> copy_out(const at::Tensor& memory, Place to) = 0;
  virtual std::shared_ptr<Copy> copy_in(Place from, const at::Tensor& memory) = 0;

  /// Returns the size of the memory, free pieces with it. Units: bytes.
  virtual std::int64_t bytes() const = 0;
};

} // namespace tessera::offload
