#pragma once

#include <cstddef>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::tracer {

/// A copy of the bytes of a module's object. Whatever a method assigns to a member (a tensor, a
/// number, a flag, a vector that grows) changes some of these bytes. The members of
/// torch::nn::Module itself (its lists, its name, its mode) are left out. An object of unknown size
/// (nn/module/marks.h) never counts as changed. It must not outlive the module.
class ObjectBytes {
 public:
  explicit ObjectBytes(const torch::nn::Module& module);

  /// Returns whether the object's bytes differ from the copy.
  bool changed() const;
  /// Returns whether the copy contains this pointer, as a member that is a tensor does.
  bool holds(const void* pointer) const;

 private:
  const torch::nn::Module* module_;
  std::vector<std::byte> bytes_; // empty: the size is unknown
};

} // namespace tessera::tracer
