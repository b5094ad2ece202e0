#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/tensor/named_tensors.h"

namespace tessera::train {

/// Finds buffers that look like a state of each sample, such as the hidden state of a recurrent
/// network: a step changes them, and a dimension of theirs has the size of a microbatch's rows.
/// Microbatches and replicas have other samples and the same buffers. Threads: step thread only.
class SampleBuffers {
 public:
  /// Copies those of this rank's buffers that may be such. Those of batch norms are left out.
  SampleBuffers(const NamedTensors& buffers, std::int64_t microbatch_rows);

  /// Returns the names of those that this rank has changed since, with their shapes: "'cell.h' of
  /// shape [1, 4, 16]".
  std::vector<std::string> changed() const;

 private:
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    at::Tensor before;
  };
  std::vector<Buffer> buffers_;
};

} // namespace tessera::train
