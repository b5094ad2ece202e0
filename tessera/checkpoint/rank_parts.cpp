#include "tessera/checkpoint/rank_parts.h"

#include "tessera/base/hash.h"

namespace tessera::checkpoint {

std::string hex(std::uint64_t parameters, std::uint64_t optimizer) {
  return hexadecimal(parameters) + '-' + hexadecimal(optimizer);
}

TensorMap tensors_of(const Subject& subject) {
  TensorMap tensors(subject.parameters.begin(), subject.parameters.end());
  tensors.insert(subject.buffers.begin(), subject.buffers.end());
  return tensors;
}

} // namespace tessera::checkpoint
