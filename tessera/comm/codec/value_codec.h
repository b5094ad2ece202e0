#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

// The byte form of any value, which objects of a World and messages of a transport share. A value
// is taken apart into its structure and its tensors; what stands for a tensor in the bytes is a
// stub, so that the tensor itself may travel another way.
namespace tessera::comm {

/// Where the bytes of a tensor are while its value travels.
enum class Place : std::uint8_t {
  kNone, // nothing to carry: no elements, or a meta tensor
  kUndefined, // as kNone, of a tensor that is not defined
  kInline, // behind the value itself
  kArena, // in the sender's shared-memory arena
  kChannel, // through the channel (MPI), in message order
};

/// What is left of a tensor inside a message.
/// Source: Karakus et al. 2021, appendix G.1.
struct TensorStub {
  at::ScalarType dtype = at::kFloat;
  c10::DeviceType device = c10::kCPU;
  Place place = Place::kNone;
  std::uint64_t offset = 0; // into the payload (kInline) or arena (kArena)
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0; // to carry; 0 for kNone
};

/// A value taken apart: a compact encoding of its structure, and its tensors.
struct Stripped {
  std::vector<std::byte> structure;
  std::vector<at::Tensor> tensors;
};

/// Takes the tensors out of `value`. A tensor that occurs several times is in
/// the table once. None, bool, int, double, string, tuples and tensors have an
/// encoding of their own; anything else is pickled.
/// Throws: CommError for what cannot travel (nesting deeper than 200, objects
/// that cannot be pickled).
Stripped strip(const c10::IValue& value);

/// Returns dtype, shape, device and bytes of a tensor; its place is kNone, or kUndefined.
/// Throws: CommError for sparse and quantized tensors.
TensorStub describe(const at::Tensor& tensor);

/// Writes the elements of a tensor of any device and strides, `describe(tensor).bytes` of them.
void copy_elements(const at::Tensor& tensor, std::byte* into);

/// An encoded value as it lies in a buffer, which must outlive it.
struct ValueView {
  std::vector<TensorStub> stubs;
  const std::byte* structure = nullptr;
  std::size_t structure_bytes = 0;
  const std::byte* payload = nullptr;
  std::size_t payload_bytes = 0;
};

/// Appends an encoded value to `out`. Room for the payload is at the end of `out`, not yet written.
void append_value(
    std::vector<std::byte>& out,
    const std::vector<TensorStub>& stubs,
    const std::vector<std::byte>& structure,
    std::size_t payload_bytes);

/// Reads a value of `size` bytes and nothing outside it. Allocates no more
/// than a small multiple of `size`.
/// Throws: CommError on anything append_value would not have written.
ValueView read_value(const std::byte* data, std::size_t size);

/// Returns the value, given the tensors of its stubs in their order.
/// Throws: CommError when the structure is damaged.
c10::IValue assemble(const ValueView& view, const std::vector<at::Tensor>& tensors);

} // namespace tessera::comm
