#include "tessera/nn/layers/embedding.h"

#include <cmath>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/functional.h"

namespace tessera::nn {

namespace {

Initializer table(const DistributedEmbeddingOptions& options) {
  return [&options](at::Tensor& full) {
    if (options._weight.defined()) {
      full.copy_(options._weight);
      return; // the user's values, the padding row among them
    }
    full.normal_(0, options.initializer_range);
    if (options.padding_idx) {
      full.select(0, *options.padding_idx).zero_();
    }
  };
}

summa::MeshBlocks rows_on_mesh(
    const TensorParallel& parallel,
    const DistributedEmbeddingOptions& options) {
  return mesh_blocks(parallel, options.num_embeddings, "DistributedEmbedding: num_embeddings");
}

void check_options_on_mesh(const DistributedEmbeddingOptions& o) {
  if (o.max_norm || o.scale_grad_by_freq || o.sparse) {
    throw ShapeError(
        "an embedding with max_norm, scale_grad_by_freq or sparse needs whole "
        "rows, which no rank of a mesh has");
  }
  if (o._skip_allgather || o._skip_scatter_and_merge) {
    throw ConfigError(
        "DistributedEmbedding: _skip_allgather and _skip_scatter_and_merge "
        "concern a table divided over one dimension; on a mesh call look_up_on_mesh");
  }
}

void check_options(DistributedEmbeddingOptions& o) {
  if (o.padding_idx) {
    const std::int64_t row = *o.padding_idx;
    if (row < -o.num_embeddings || row >= o.num_embeddings) {
      throw ConfigError(tessera::str(
          "DistributedEmbedding: padding_idx is ",
          row,
          "; the table has rows 0 to ",
          o.num_embeddings - 1));
    }
    if (row < 0) {
      o.padding_idx = row + o.num_embeddings;
    }
  }
  if (o._weight.defined() &&
      o._weight.sizes() != at::IntArrayRef({o.num_embeddings, o.embedding_dim})) {
    throw ShapeError(tessera::str(
        "DistributedEmbedding: _weight has sizes ",
        o._weight.sizes(),
        "; expected [",
        o.num_embeddings,
        ", ",
        o.embedding_dim,
        "]"));
  }
  if (o._skip_scatter_and_merge && o.split == EmbeddingSplit::kVocabulary) {
    throw ConfigError(
        "DistributedEmbedding: _skip_scatter_and_merge asks for this rank's "
        "columns, a table divided by vocabulary has none; divide it by "
        "embedding_dim");
  }
}

/// Returns the sample counts of gathered samples, of which every rank brought equally many.
Lengths gathered_samples(const TensorParallel& parallel, std::int64_t all) {
  const std::int64_t ranks = parallel.size();
  if (all % ranks != 0) {
    throw ShapeError(tessera::str(
        "DistributedEmbedding: with _skip_allgather alone every rank's result is that of an equal "
        "share of the indices; ",
        all,
        " samples are not a multiple of ",
        ranks,
        " ranks; set _skip_scatter_and_merge too and divide the result"));
  }
  return Lengths(static_cast<std::size_t>(ranks), all / ranks);
}

} // namespace

DistributedEmbeddingImpl::DistributedEmbeddingImpl(const DistributedEmbeddingOptions& given)
    : options(given) {
  check_options(options);
  const std::vector<std::int64_t> sizes{options.num_embeddings, options.embedding_dim};
  ParameterCreation how;
  if (options._weight.defined()) {
    how.dtype = options._weight.scalar_type();
  }
  const auto create = parameter_creation_scope(*this, creation_for(parallel(), how));
  if (inside_placement(parallel()) == Placement::kOnMesh) {
    check_options_on_mesh(options);
    const summa::Mesh& mesh = *parallel().mesh;
    weight = create.initialize_shard(
        "weight",
        block_of_matrix(
            rows_on_mesh(parallel(), options).over_rows,
            mesh.row(),
            mesh_blocks(parallel(), options.embedding_dim, "DistributedEmbedding: embedding_dim")
                .over_columns,
            mesh.column()),
        table(options));
    options._weight = at::Tensor();
    return;
  }
  if (options.split == EmbeddingSplit::kVocabulary) {
    weight = create.initialize_with_output_partition("weight", sizes, table(options));
    first_row_ = even_range(options.num_embeddings, parallel().size(), parallel().rank()).start;
  } else {
    weight = create.initialize_with_input_partition("weight", sizes, table(options));
  }
  options._weight = at::Tensor(); // not a second copy of the table
  if (options.padding_idx) {
    const std::int64_t row = *options.padding_idx - first_row_;
    padding_row_ = row >= 0 && row < weight.size(0) ? row : -1;
  }
}

at::Tensor DistributedEmbeddingImpl::look_up(const at::Tensor& ids) {
  return at::embedding(weight, ids, padding_row_, options.scale_grad_by_freq, options.sparse);
}

void DistributedEmbeddingImpl::limit_norms(const TensorParallel& parallel, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = std::get<0>(at::_unique(ids.reshape({-1})));
  at::Tensor table = weight.detach();
  if (options.split == EmbeddingSplit::kVocabulary) {
    at::embedding_renorm_(table, rows, *options.max_norm, options.norm_type);
    return;
  }
  // The norm of a row is a sum over all ranks' columns.
  const at::Tensor found = table.index_select(0, rows);
  const at::Tensor wide = found.to(at::promoteTypes(found.scalar_type(), at::kFloat));
  at::Tensor norms;
  if (std::isinf(options.norm_type)) {
    norms = std::get<0>(wide.abs().max(1));
    if (parallel.size() > 1 && !parallel.shapes_only) {
      parallel.group->all_reduce(norms, comm::ReduceOp::kMax);
    }
  } else {
    norms = wide.abs().pow(options.norm_type).sum(1);
    all_reduce(parallel, norms);
    norms = norms.pow(1 / options.norm_type);
  }
  // As in torch, only rows above the limit change, with its margin of 1e-7.
  const at::Tensor factors = at::where(
      norms > *options.max_norm, *options.max_norm / (norms + 1e-7), at::ones_like(norms));
  table.index_copy_(0, rows, found * factors.unsqueeze(1).to(found.scalar_type()));
}

at::Tensor DistributedEmbeddingImpl::look_up_own_rows(
    const TensorParallel& parallel,
    const at::Tensor& ids) {
  const at::Tensor flat = ids.reshape({-1});
  if (flat.numel() > 0 && !parallel.shapes_only) {
    const auto lowest = flat.min().item<std::int64_t>();
    const auto highest = flat.max().item<std::int64_t>();
    if (lowest < 0 || highest >= options.num_embeddings) {
      throw ShapeError(tessera::str(
          "DistributedEmbedding: index ",
          lowest < 0 ? lowest : highest,
          " is outside the table's rows 0 to ",
          options.num_embeddings - 1));
    }
  }
  const at::Tensor local = flat - first_row_;
  const at::Tensor places =
      at::logical_and(local >= 0, local < weight.size(0)).nonzero().squeeze(1);
  const at::Tensor rows = local.index_select(0, places);
  if (options.max_norm) {
    limit_norms(parallel, rows);
  }
  std::vector<std::int64_t> sizes = ids.sizes().vec();
  sizes.push_back(options.embedding_dim);
  return at::zeros({flat.numel(), options.embedding_dim}, weight.options())
      .index_copy(0, places, look_up(rows))
      .view(sizes);
}

at::Tensor DistributedEmbeddingImpl::look_up_on_mesh(
    const TensorParallel& parallel,
    const at::Tensor& ids) {
  return summa::embedding(
      parallel.mesh,
      weight,
      ids,
      rows_on_mesh(parallel, options),
      options.padding_idx ? *options.padding_idx : -1);
}

at::Tensor DistributedEmbeddingImpl::look_up_through_mesh(
    const TensorParallel& parallel,
    const at::Tensor& ids) {
  // Ids need not belong to samples (they may be distances). Where all ranks pass the
  // same ids, each mesh row takes an equal part.
  const std::int64_t takers = parallel.mesh->rows();
  const std::int64_t missing =
      parallel.prescaled_batch ? (takers - ids.size(0) % takers) % takers : 0;
  at::Tensor all = ids;
  if (missing > 0) {
    std::vector<std::int64_t> sizes = ids.sizes().vec();
    sizes[0] = missing;
    all = at::cat({ids, at::zeros(sizes, ids.options())});
  }
  const summa::Boundary boundary(parallel.mesh, parallel.prescaled_batch);
  const at::Tensor rows = look_up_on_mesh(parallel, boundary.samples_of_row(all));
  const at::Tensor y = leave(parallel, rows, options.embedding_dim, {});
  return missing > 0 ? y.narrow(0, 0, ids.size(0)) : y;
}

at::Tensor DistributedEmbeddingImpl::forward(const at::Tensor& ids) {
  const ForwardScope present(*this);
  const TensorParallel parallel = parallel_now();
  // A single index has no dimension along which samples could be joined.
  const bool single = ids.dim() == 0;
  at::Tensor all = single ? ids.reshape({1}) : ids;
  if (inside_placement(parallel) == Placement::kOnMesh) {
    const at::Tensor y = look_up_through_mesh(parallel, all);
    return single ? y.squeeze(0) : y;
  }
  const bool own_samples = !parallel.prescaled_batch;
  Lengths samples;
  if (own_samples && !options._skip_allgather) {
    samples = samples_of_ranks(parallel, all.size(0));
    all = gather(parallel, all, 0, samples);
  } else if (own_samples && !options._skip_scatter_and_merge) {
    samples = gathered_samples(parallel, all.size(0));
  }
  at::Tensor y;
  if (options.split == EmbeddingSplit::kVocabulary) {
    y = sum_of_partials(
        parallel, look_up_own_rows(parallel, all), outside_placement(parallel), samples);
  } else {
    if (options.max_norm) {
      limit_norms(parallel, all);
    }
    y = look_up(all);
    if (!options._skip_scatter_and_merge) {
      y = own_samples ? shard_to_samples(parallel, y, options.embedding_dim, samples)
                      : gather_channels(parallel, y, options.embedding_dim);
    }
  }
  return single ? y.squeeze(0) : y;
}

} // namespace tessera::nn
