// Must not compile: refused_type.cmake counts what the compiler says.
#include "tessera/tensor/value.h"

// It has a constructor, so that its fields are its own business.
struct Constructed {
  explicit Constructed(at::Tensor value) : state(value) {}
  at::Tensor state;
};
struct HoldsArray {
  at::Tensor parts[2];
};
// One of its fields does not travel.
struct HoldsPointer {
  at::Tensor state;
  void* handle;
};

c10::IValue refused(const Constructed& value) {
  return tessera::pack(value);
}
c10::IValue refused(const HoldsArray& value) {
  return tessera::pack(value);
}
c10::IValue refused(const HoldsPointer& value) {
  return tessera::pack(value);
}
at::IntArrayRef refused(const c10::IValue& value) {
  return tessera::unpack<at::IntArrayRef>(value);
}
