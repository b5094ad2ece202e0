#include "tessera/runtime/replay/packet_store.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

// Returns a tensor of this form at a place in `bytes`, without a copy.
at::Tensor view_bytes(const at::Tensor& bytes, std::int64_t place, const TensorSignature& form) {
  std::vector<std::int64_t> strides(form.sizes.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<std::int64_t>(form.sizes[d], 1);
  }
  const auto element = static_cast<std::int64_t>(c10::elementSize(form.dtype));
  return at::empty({0}, bytes.options().dtype(form.dtype))
      .set_(bytes.storage(), (bytes.storage_offset() + place) / element, form.sizes, strides);
}

} // namespace

void PacketStore::put(const MessageId& packet, const at::Tensor& bytes) {
  const auto found = program_.packets.find(packet);
  TESSERA_CHECK(found != program_.packets.end(), "a packet that nobody takes");
  const auto& form = found->second;
  if (bytes.scalar_type() != at::kByte || bytes.numel() != form.places.back()) {
    throw CommError(tessera::str(
        "a packet of ", bytes.numel(), " bytes came where ", form.places.back(), " were planned"));
  }
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < form.tensors.size(); ++i) {
    tensors.push_back(view_bytes(bytes, form.places[i], form.tensors[i]));
  }
  put(packet, std::move(tensors));
}

void PacketStore::put(const MessageId& packet, std::vector<at::Tensor> tensors) {
  Arrived arrived;
  arrived.tensors = std::move(tensors);
  arrived.uses = program_.plan.packets.at(packet).uses;
  for (const int uses : arrived.uses) {
    arrived.left += uses;
  }
  const bool fresh = arrived_.emplace(packet, std::move(arrived)).second;
  TESSERA_CHECK(fresh, "a packet came twice");
}

at::Tensor PacketStore::take(const PacketPlace& place, bool may_change) {
  const auto found = arrived_.find(place.message);
  TESSERA_CHECK(found != arrived_.end(), "a packet is not there");
  Arrived& arrived = found->second;
  const bool shared = program_.plan.packets.at(place.message).uses[place.at] > 1;
  at::Tensor& tensor = arrived.tensors.at(place.at);
  at::Tensor own = tensor;
  if (shared) {
    // Modules may not write into their arguments, so those can share memory.
    own = may_change ? tensor.clone() : tensor.detach();
  }
  if (--arrived.uses[place.at] == 0) {
    tensor = at::Tensor();
  }
  if (--arrived.left == 0) {
    arrived_.erase(found);
  }
  return own;
}

} // namespace tessera::runtime
