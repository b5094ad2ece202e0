#pragma once

#include <cstddef>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::tracer {

/// The bytes of a module's object as they were: whatever a method assigns to a member, a tensor, a
/// number, a flag or a vector that grows, changes some of them. What torch::nn::Module itself keeps
/// in the object (its lists, its name, its mode) is left out. Nothing is known of an object whose
/// size nobody said (nn/module/object_size.h). Must not outlive the module.
class ObjectBytes {
 public:
  explicit ObjectBytes(const torch::nn::Module& module);

  /// Whether the object's bytes are others now.
  bool changed() const;
  /// Whether the object holds this pointer, as a member that is a tensor does.
  bool holds(const void* pointer) const;

 private:
  const torch::nn::Module* module_;
  std::vector<std::byte> bytes_; // empty: of unknown size
};

} // namespace tessera::tracer
