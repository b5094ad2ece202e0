#include "tessera/tracer/object_bytes.h"

#include <algorithm>
#include <cstring>

#include "tessera/nn/module/marks.h"

namespace tessera::tracer {

namespace {

// Returns the offset at which a class derived from Module may put its first member. It can be less
// than sizeof(Module), because members are put into the padding at the end of a base.
std::size_t bytes_of_base() {
  struct Probe : torch::nn::Module {
    char first = 0;
  };
  static const std::size_t bytes = [] {
    const Probe probe;
    return static_cast<std::size_t>(
        &probe.first -
        reinterpret_cast<const char*>(static_cast<const torch::nn::Module*>(&probe)));
  }();
  return bytes;
}

std::vector<std::byte> own_bytes_of(const torch::nn::Module& module) {
  const std::size_t size = nn::object_size(module);
  const auto* object = static_cast<const std::byte*>(dynamic_cast<const void*>(&module));
  std::vector<std::byte> bytes(object, object + size);
  // The base may be anywhere in the object, because libtorch derives from it virtually.
  const std::size_t begin =
      std::min<std::size_t>(reinterpret_cast<const std::byte*>(&module) - object, size);
  const std::size_t end = std::min(begin + bytes_of_base(), size);
  std::fill(bytes.begin() + begin, bytes.begin() + end, std::byte{0});
  return bytes;
}

} // namespace

ObjectBytes::ObjectBytes(const torch::nn::Module& module)
    : module_(&module), bytes_(own_bytes_of(module)) {}

bool ObjectBytes::changed() const {
  return own_bytes_of(*module_) != bytes_;
}

bool ObjectBytes::holds(const void* pointer) const {
  for (std::size_t i = 0; i + sizeof pointer <= bytes_.size(); i += sizeof pointer) {
    if (std::memcmp(bytes_.data() + i, &pointer, sizeof pointer) == 0) {
      return true;
    }
  }
  return false;
}

} // namespace tessera::tracer
