#include "tessera/checkpoint/rank_parts.h"

#include <iomanip>
#include <sstream>

namespace tessera::checkpoint {

std::string hex(std::uint64_t parameters, std::uint64_t optimizer) {
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(16) << parameters << '-' << std::setw(16)
      << optimizer;
  return out.str();
}

TensorMap tensors_of(const Subject& subject) {
  TensorMap tensors(subject.parameters.begin(), subject.parameters.end());
  tensors.insert(subject.buffers.begin(), subject.buffers.end());
  return tensors;
}

} // namespace tessera::checkpoint
