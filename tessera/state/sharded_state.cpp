#include "tessera/state/sharded_state.h"

#include <utility>

namespace tessera::state {

using sharding::DividedParameter;
using sharding::DividedParameters;

NamedTensors whole_tensors(const DividedParameters& divided, NamedTensors parts, bool keep) {
  for (auto& [name, tensor] : parts) {
    if (const DividedParameter* parameter = divided.find(name)) {
      const at::Tensor whole = divided.whole_of(*parameter, tensor);
      tensor = keep ? whole : at::Tensor();
    }
  }
  return parts;
}

OptimizerState whole_state(const DividedParameters& divided, OptimizerState parts, bool keep) {
  for (auto& [name, fields] : parts.parameters) {
    const DividedParameter* parameter = divided.find(name);
    if (parameter == nullptr) {
      continue;
    }
    for (auto& [field, value] : fields) {
      if (value.isTensor() && value.toTensor().sizes() == parameter->part.sizes()) {
        const at::Tensor whole = divided.whole_of(*parameter, value.toTensor());
        value = keep ? whole : at::Tensor();
      }
    }
  }
  return parts;
}

OptimizerState part_state(const DividedParameters& divided, OptimizerState whole) {
  for (auto& [name, fields] : whole.parameters) {
    const DividedParameter* parameter = divided.find(name);
    if (parameter == nullptr) {
      continue;
    }
    for (auto& [field, value] : fields) {
      if (value.isTensor() && value.toTensor().sizes() == parameter->whole.sizes()) {
        value = divided.part_of(*parameter, value.toTensor());
      }
    }
  }
  return whole;
}

} // namespace tessera::state
