#include "tessera/runtime/call_modes.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include "tessera/tensor/torch_compat.h"

namespace tessera::runtime {

namespace {

void apply_modes(const Fields& fields) {
  at::GradMode::set_enabled(fields.grad_enabled != 0);
  if (cpu_autocast::enabled() != (fields.autocast != 0)) {
    cpu_autocast::set_enabled(fields.autocast != 0);
  }
  if (fields.autocast != 0) {
    cpu_autocast::set_dtype(static_cast<at::ScalarType>(fields.autocast_dtype));
  }
}

} // namespace

void capture_modes(Fields& fields) {
  fields.grad_enabled = at::GradMode::is_enabled() ? 1 : 0;
  fields.autocast = cpu_autocast::enabled() ? 1 : 0;
  fields.autocast_dtype = static_cast<std::int8_t>(cpu_autocast::dtype());
}

ModeScope::ModeScope(const Fields& fields) {
  capture_modes(previous_);
  apply_modes(fields);
}

ModeScope::~ModeScope() {
  if (cpu_autocast::enabled() && previous_.autocast == 0) {
    // Casts kept for this call's parameters must not serve another call.
    at::autocast::clear_cache();
  }
  apply_modes(previous_);
}

} // namespace tessera::runtime
