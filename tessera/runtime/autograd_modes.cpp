#include "tessera/runtime/autograd_modes.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include "tessera/tensor/torch_compat.h"

namespace tessera::runtime {

namespace {

void apply_modes(const Fields& fields) {
  at::GradMode::set_enabled(fields.grad_enabled);
  if (cpu_autocast::enabled() != fields.autocast) {
    cpu_autocast::set_enabled(fields.autocast);
  }
  if (fields.autocast) {
    cpu_autocast::set_dtype(fields.autocast_dtype);
  }
}

} // namespace

void capture_modes(Fields& fields) {
  fields.grad_enabled = at::GradMode::is_enabled();
  fields.autocast = cpu_autocast::enabled();
  fields.autocast_dtype = cpu_autocast::dtype();
}

ModeScope::ModeScope(const Fields& fields) {
  capture_modes(previous_);
  apply_modes(fields);
}

ModeScope::~ModeScope() {
  if (cpu_autocast::enabled() && !previous_.autocast) {
    // Casts kept for this call's parameters must not serve another call.
    at::autocast::clear_cache();
  }
  apply_modes(previous_);
}

} // namespace tessera::runtime
