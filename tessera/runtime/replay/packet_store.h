#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/runtime/replay/static_program.h"

namespace tessera::runtime {

/// The packets of one static step that have come and are not all used yet.
/// Not collective. Threads: whoever holds the baton.
class PacketStore {
 public:
  /// `program` outlives it.
  explicit PacketStore(const StaticProgram& program) : program_(program) {}

  /// Takes bytes from another rank. Throws: CommError when their number is wrong.
  void put(const MessageId& packet, const at::Tensor& bytes);
  /// Takes tensors that this rank sends to itself.
  void put(const MessageId& packet, std::vector<at::Tensor> tensors);
  bool has(const MessageId& packet) const {
    return arrived_.contains(packet);
  }
  /// Returns the tensor at a place. Each use gets a tensor of its own. With `may_change` user code
  /// may write into it, so it shares memory with no other use.
  at::Tensor take(const PacketPlace& place, bool may_change);

 private:
  struct Arrived {
    std::vector<at::Tensor> tensors;
    std::vector<int> uses; // left
    int left = 0; // uses of all
  };

  const StaticProgram& program_;
  std::map<MessageId, Arrived> arrived_;
};

} // namespace tessera::runtime
