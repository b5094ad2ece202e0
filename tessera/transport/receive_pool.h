#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::transport {

/// Memory for received tensors that cannot stay where they arrived. Large pieces are kept when
/// their tensor is freed, since the same sizes come again every step and the system would clear new
/// pages for each, which costs more than the copy (paper, appendix G.2: persistent buffers for
/// reception).
/// Threads: any thread. Lives as long as a tensor it gave out.
class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  /// `most` is the largest number of unused bytes that are kept.
  explicit ReceivePool(std::size_t most) : most_(most) {}

  /// Returns an uninitialised tensor of host memory; `bytes` is what its shape needs.
  at::Tensor make(const std::vector<std::int64_t>& shape, at::ScalarType dtype, std::size_t bytes);

  /// Returns the number of bytes kept now.
  std::size_t kept() const;

 private:
  struct Free {
    void operator()(std::byte* at) const;
  };
  using Piece = std::unique_ptr<std::byte, Free>;

  Piece take(std::size_t& bytes);
  void give_back(std::size_t bytes, std::byte* at);

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::multimap<std::size_t, Piece> pieces_; // by size
  std::size_t kept_ = 0;
};

} // namespace tessera::transport
