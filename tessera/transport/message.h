#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "tessera/transport/transport.h"

namespace tessera::transport {

/// Where the bytes of a tensor are while its message travels.
enum class Place : std::uint8_t {
  kNone, // nothing to carry: no elements, or a meta tensor
  kInline, // behind the message itself
  kArena, // in the sender's shared-memory arena
  kChannel, // through the channel (MPI), in message order
};

/// What is left of a tensor inside a message (paper, appendix G.1).
struct TensorStub {
  at::ScalarType dtype = at::kFloat;
  c10::DeviceType device = c10::kCPU;
  Place place = Place::kNone;
  std::uint64_t offset = 0; // into the payload (kInline) or arena (kArena)
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0; // to carry; 0 for kNone
};

/// A value without its tensors: a compact encoding of the rest, and them.
struct Stripped {
  std::vector<std::byte> structure;
  std::vector<at::Tensor> tensors;
};

/// Takes the tensors out of `body`. A tensor that occurs several times is in
/// the table once. None, bool, int, double, string, tuples and tensors have an
/// encoding of their own; anything else is pickled.
/// Throws: CommError for what cannot travel (sparse or quantized tensors,
/// nesting deeper than 200).
Stripped strip(const c10::IValue& body);

/// dtype, shape, device and bytes of a tensor; its place is kNone.
TensorStub describe(const at::Tensor& tensor);

/// A message as it lies in a buffer, which must outlive it.
struct MessageView {
  Header header{};
  std::vector<TensorStub> stubs;
  const std::byte* structure = nullptr;
  std::size_t structure_bytes = 0;
  const std::byte* payload = nullptr;
  std::size_t payload_bytes = 0;
};

std::vector<std::byte> encode(
    const Header& header,
    const std::vector<TensorStub>& stubs,
    const std::vector<std::byte>& structure,
    const std::vector<std::byte>& payload);

/// Reads a message of `size` bytes and nothing outside it. Allocates no more
/// than a small multiple of `size`.
/// Throws: CommError on anything encode would not have written.
MessageView decode(const std::byte* data, std::size_t size);

/// The value of a message, given the tensors of its stubs in their order.
/// Throws: CommError when the structure is damaged.
c10::IValue assemble(const MessageView& message, const std::vector<at::Tensor>& tensors);

} // namespace tessera::transport
