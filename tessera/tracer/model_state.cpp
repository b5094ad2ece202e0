#include "tessera/tracer/model_state.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "tessera/base/error.h"

namespace tessera::tracer {

namespace {

bool has_version(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() && !tensor.is_inference();
}

} // namespace

ModelState::ModelState(torch::nn::Module& root, const std::vector<at::Device>& devices) {
  for (const auto& item : root.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (buffer.defined() && !buffer.is_meta()) {
      buffers_.push_back({item.key(), buffer, buffer.detach().clone()});
    }
  }
  for (const auto& parameter : root.named_parameters()) {
    if (has_version(parameter.value())) {
      parameters_.push_back(
          {parameter.key(),
           parameter.value(),
           static_cast<std::int64_t>(parameter.value()._version())});
    }
  }
  for (const at::Device device : devices) {
    if (!device.is_meta()) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generators_.emplace_back(generator, generator.get_state());
    }
  }
}

ModelState::~ModelState() {
  const at::NoGradGuard no_grad;
  // All buffers are restored, because batch norm's kernel does not increase the version counter.
  for (auto& [name, buffer, saved] : buffers_) {
    if (buffer.sizes() != saved.sizes()) {
      buffer.resize_(saved.sizes()); // the forward may have resized it
    }
    buffer.copy_(saved);
  }
  for (auto& [generator, state] : generators_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

void ModelState::check_parameters() const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor._version() != parameter.version) {
      throw ConfigError(
          str("trace: the forward changes parameter ",
              parameter.name,
              " in place, which cannot be undone; make it a buffer, or set "
              "skip_tracing: true"));
    }
  }
}

std::vector<std::string> ModelState::changed_buffers() const {
  std::vector<std::string> names;
  for (const auto& [name, buffer, saved] : buffers_) {
    if (at::isFloatingType(buffer.scalar_type()) &&
        (buffer.sizes() != saved.sizes() || !at::equal(buffer.detach(), saved))) {
      names.push_back(name);
    }
  }
  return names;
}

} // namespace tessera::tracer
