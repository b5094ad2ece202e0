#pragma once

#include <cstdint>

#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

/// The part of the table that a rank holds.
enum class EmbeddingSplit {
  kEmbeddingDim, // all rows, some columns (Karakus et al. 2021, section 5.3)
  kVocabulary // some rows, all columns
};

struct DistributedEmbeddingOptions {
  std::int64_t num_embeddings = 0;
  std::int64_t embedding_dim = 0;
  /// This row gets no gradient and starts as zeros.
  TorchOptional<std::int64_t> padding_idx = {};
  /// Rows that are looked up are first scaled down to this norm, in place.
  TorchOptional<double> max_norm = {};
  double norm_type = 2.0;
  /// Gradients divided by how often a row occurs in the samples of the whole
  /// TP_GROUP.
  bool scale_grad_by_freq = false;
  bool sparse = false;
  /// The full table's first values; undefined: normal(0, initializer_range).
  at::Tensor _weight = {};
  double initializer_range = 0.02;
  /// The caller passes the indices of all ranks, which brought as many each.
  bool _skip_allgather = false;
  /// The result is this rank's columns for all samples; divided by
  /// embedding_dim only. With _skip_allgather too the ranks' shares may differ.
  bool _skip_scatter_and_merge = false;
  EmbeddingSplit split = EmbeddingSplit::kEmbeddingDim;
};

/// torch::nn::Embedding with a divided table. Indices are gathered from all
/// ranks. Divided by embedding_dim, every rank looks up its columns and an
/// all-to-all brings the columns of a rank's samples together; divided by
/// vocabulary, every rank looks up the rows it has and a reduce-scatter sums.
/// With a prescaled batch there is nothing to gather, and the results are
/// gathered or all-reduced. On a mesh the table is in blocks, divided both ways
/// whatever `split` says.
///
/// Shapes: ids_b... (int64 or int32) -> y_b...E.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Throws: ConfigError for options that exclude each other; ShapeError on a mesh
/// for a table with fewer rows or columns than it has columns, and for options that need whole
/// rows: max_norm, scale_grad_by_freq, sparse. Source: Karakus et al. 2021, section 5.3 and
/// appendix I.3; Xu et al. 2021, section 3.2.1.
class DistributedEmbeddingImpl : public DistributedModule {
 public:
  explicit DistributedEmbeddingImpl(const DistributedEmbeddingOptions& options);
  at::Tensor forward(const at::Tensor& ids);
  /// For modules around this one, when divided by vocabulary. Returns rows of the indices of
  /// all ranks, zeros where another rank has the row.
  at::Tensor look_up_own_rows(const TensorParallel& parallel, const at::Tensor& ids);
  /// For modules around this one on a mesh: ids of my mesh row -> rows_...i.
  at::Tensor look_up_on_mesh(const TensorParallel& parallel, const at::Tensor& ids);

  DistributedEmbeddingOptions options;
  at::Tensor weight;

 private:
  at::Tensor look_up(const at::Tensor& ids);
  at::Tensor look_up_through_mesh(const TensorParallel& parallel, const at::Tensor& ids);
  void limit_norms(const TensorParallel& parallel, const at::Tensor& ids);

  std::int64_t first_row_ = 0; // of this rank
  std::int64_t padding_row_ = -1; // in the local table
};
TESSERA_MODULE(DistributedEmbedding);

} // namespace tessera::nn
