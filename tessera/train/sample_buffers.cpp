#include "tessera/train/sample_buffers.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::train {

namespace {

bool may_be_of_samples(const at::Tensor& buffer, std::int64_t rows) {
  return buffer.defined() && !buffer.is_meta() && at::isFloatingType(buffer.scalar_type()) &&
         buffer.numel() > 0 &&
         std::find(buffer.sizes().begin(), buffer.sizes().end(), rows) != buffer.sizes().end();
}

} // namespace

SampleBuffers::SampleBuffers(const NamedTensors& buffers, std::int64_t microbatch_rows) {
  for (const auto& [name, buffer] : buffers) {
    if (may_be_of_samples(buffer, microbatch_rows) && !name.ends_with("running_mean") &&
        !name.ends_with("running_var")) {
      buffers_.push_back({name, buffer, buffer.detach().clone()});
    }
  }
}

std::vector<std::string> SampleBuffers::changed() const {
  std::vector<std::string> names;
  for (const Buffer& buffer : buffers_) {
    if (buffer.tensor.sizes() != buffer.before.sizes() ||
        !at::equal(buffer.tensor.detach(), buffer.before)) {
      names.push_back(tessera::str("'", buffer.name, "' of shape ", buffer.before.sizes()));
    }
  }
  return names;
}

} // namespace tessera::train
