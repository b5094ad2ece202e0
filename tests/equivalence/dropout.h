#pragma once

#include <cstdint>

#include <torch/torch.h>

/// Dropout of the random programs. Under a strategy it is libtorch's operator, which the library
/// takes over; beside it one process computes the masks here, from what decision 95 promises, so
/// that the two share no code.
namespace tessera::equivalence {

/// Where one microbatch of a step stands in a run with `"random": "layout_independent"`.
struct MaskPlace {
  std::uint64_t seed = 0;
  std::uint32_t step = 0; // of the run, counted from 0, evaluations too
  std::int64_t before = 0; // samples of the batch that come before it, one replica behind the other
  std::int64_t samples = 1; // of the microbatch
};

/// While it lives, `drop` on this thread draws for this microbatch.
class MasksOfOneProcess {
 public:
  explicit MasksOfOneProcess(const MaskPlace& place);
  ~MasksOfOneProcess();
  MasksOfOneProcess(const MasksOfOneProcess&) = delete;
  MasksOfOneProcess& operator=(const MasksOfOneProcess&) = delete;
};

/// Inverted dropout of a tensor whose rows are samples: libtorch's, or with the masks of one
/// process.
torch::Tensor drop(const torch::Tensor& x, double probability, bool training);

} // namespace tessera::equivalence
