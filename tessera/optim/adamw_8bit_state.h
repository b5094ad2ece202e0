#pragma once

#include <cstddef>
#include <cstdint>

#include <torch/optim/optimizer.h>

#include "tessera/optim/block_codes.h"

namespace tessera::optim {

/// One of Adam's averages.
class Average {
 public:
  /// Zeros: in bytes, or of fewer than 4096 elements in f32.
  Average(at::IntArrayRef sizes, const ByteValues& values);
  /// The same of f32 numbers on the processor, which it may keep.
  Average(const at::Tensor& numbers, const ByteValues& values);

  /// One block of elements.
  void read(std::int64_t block, std::int64_t count, float* into) const;
  void write(std::int64_t block, std::int64_t count, const float* from);
  /// Returns all of them in f32 and the parameter's shape; what is f32 is no copy.
  at::Tensor numbers() const;
  std::size_t bytes() const;

 private:
  const ByteValues* values_;
  BlockCodes codes_;
  at::Tensor exact_; // in the place of codes_
};

/// What AdamW8bit keeps for each parameter.
struct AdamW8bitParamState : torch::optim::OptimizerCloneableParamState<AdamW8bitParamState> {
  /// Before the first update.
  explicit AdamW8bitParamState(at::IntArrayRef sizes)
      : exp_avg(sizes, ByteValues::with_sign()),
        exp_avg_sq_root(sizes, ByteValues::without_sign()) {}
  AdamW8bitParamState(std::int64_t updates, const at::Tensor& average, const at::Tensor& root)
      : step(updates),
        exp_avg(average, ByteValues::with_sign()),
        exp_avg_sq_root(root, ByteValues::without_sign()) {}

  std::int64_t step = 0; // updates that were made
  Average exp_avg;
  Average exp_avg_sq_root; // the square root: half the decades
};

/// Returns bytes of both averages of a tensor of so many elements. Threads: any.
double adamw_8bit_bytes(double elements);

} // namespace tessera::optim
