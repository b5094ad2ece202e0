#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/offload/host.h"

namespace tessera::offload {

/// What was copied, over the life of an Offloader. Units: bytes.
struct Counters {
  std::int64_t copies_out = 0;
  std::int64_t bytes_out = 0;
  std::int64_t copies_in = 0;
  std::int64_t bytes_in = 0;
  /// Tensors whose copy back had not ended when they were needed.
  std::int64_t waits = 0;
};

/// A tensor that leaves for a Host and comes back with the same layout, at the same place in a
/// cache line, so that kernels do with it what they would have done.
///
/// The storage is remembered without being held: while others hold it, nothing has to come back.
/// Threads: one at a time.
class Entry {
 public:
  /// Begins to copy `tensor` out. Throws: ConfigError when there is no room.
  Entry(at::Tensor tensor, std::shared_ptr<Host> host, std::shared_ptr<Counters> counters);
  /// Waits for a copy that runs, and makes its place free.
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  /// Returns whether `tensor` is the same view of the same bytes, which have not changed.
  bool is(const at::Tensor& tensor) const;
  /// Drops the tensor when its copy out has ended; returns whether there is nothing left to do.
  /// Throws: ConfigError when the copy failed; the tensor is here still.
  bool settle();
  /// Begins to bring it back, unless it is here or on its way.
  void fetch();
  /// Returns the tensor, brought back at once where nobody has asked for it before.
  at::Tensor get();

 private:
  std::optional<c10::Storage> alive() const;

  std::shared_ptr<Host> host_;
  std::shared_ptr<Counters> counters_;
  at::TensorOptions options_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  std::int64_t offset_; // in its storage, elements
  std::int64_t bytes_; // from its first element to its last
  std::int64_t into_line_; // bytes from the begin of a cache line to the first element
  std::uint32_t version_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;

  at::Tensor here_; // undefined while it is away
  bool wanted_ = false; // it stays when its copy out has ended
  Place place_;
  std::shared_ptr<Copy> leaving_; // nullptr: has ended
  std::shared_ptr<Copy> coming_;
};

} // namespace tessera::offload
