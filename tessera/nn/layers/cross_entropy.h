#pragma once

#include <cstdint>

#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"

namespace tessera::nn {

struct DistributedCrossEntropyOptions {
  std::int64_t vocab_size = 0;
  /// Positions with this target do not count.
  std::int64_t ignore_index = -100;
};

/// Mean cross entropy over a vocabulary divided among the ranks, in f32 (f64
/// for f64 logits). Two numbers a position travel, never a logit.
///
/// Shapes: logits_B...v of all samples (v = even_range(vocab_size, tp, rank); on
/// a mesh the samples of its row and the v of its column), targets_b... of this
/// rank's samples -> the mean over this rank's targets (NaN when none counts, as
/// torch's).
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Cost for R positions of all ranks, r of this one: forward, all-gather of two
/// f32 for R positions, and of r targets when samples are the ranks' own;
/// backward, then also an all-gather of r f32. Keeps the logits. On a mesh see
/// summa/functional.h.
/// Throws: ShapeError for a target outside the vocabulary.
/// Source: Shoeybi et al. 2019, section 3, where the sums are all-reduced;
/// Karakus et al. 2021, appendix I.3 (DistributedTransformerLMHead); Xu et al.
/// 2021, section 3.2.2.
class DistributedCrossEntropyImpl : public DistributedModule {
 public:
  explicit DistributedCrossEntropyImpl(const DistributedCrossEntropyOptions& options);
  at::Tensor forward(const at::Tensor& logits, const at::Tensor& targets);

  DistributedCrossEntropyOptions options;

 private:
  Range own_classes() const;
  void check(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& counts) const;
  at::Tensor losses_on_mesh(
      const TensorParallel& parallel,
      const at::Tensor& logits,
      const at::Tensor& targets) const;
  /// A target that does not count is -1 here.
  at::Tensor losses_of_own_samples(
      const TensorParallel& parallel,
      const at::Tensor& logits,
      const at::Tensor& targets) const;
};
TESSERA_MODULE(DistributedCrossEntropy);

} // namespace tessera::nn
