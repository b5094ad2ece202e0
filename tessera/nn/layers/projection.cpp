#include "tessera/nn/layers/projection.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/parallel/parameter_creation.h"

namespace tessera::nn {

Lengths FeatureSplit::lengths(int ranks) const {
  Lengths result;
  for (const std::int64_t own : even_lengths(parts, ranks)) {
    result.push_back(groups * own * width);
  }
  return result;
}

Blocks FeatureSplit::blocks(int ranks) const {
  return {parts * width, ranks, width, /*may_be_empty=*/true};
}

summa::LinearLayout DistributedProjectionImpl::layout_on_mesh() const {
  const summa::Mesh& mesh = *summa::mesh_of(parallel());
  const summa::MeshBlocks hidden = mesh_blocks(parallel(), hidden_, "hidden_size");
  const summa::MeshBlocks features(
      mesh, split_.parts * split_.width, split_.width, /*may_be_empty=*/true);
  const int groups = static_cast<int>(split_.groups);
  return direction_ == Direction::kInto ? summa::LinearLayout{hidden, features.over_columns, groups}
                                        : summa::LinearLayout{features, hidden.over_columns, 1};
}

Shard DistributedProjectionImpl::weight_shard() const {
  const int ranks = parallel().size();
  const int rank = parallel().rank();
  const int groups = static_cast<int>(split_.groups);
  const Placement inside = inside_placement(parallel());
  if (inside == Placement::kOnMesh) {
    const summa::Mesh& mesh = *parallel().mesh;
    const summa::LinearLayout layout = layout_on_mesh();
    return block_of_matrix(
        layout.in.over_rows,
        mesh.row(),
        layout.out,
        mesh.column(),
        layout.groups,
        /*transposed=*/true);
  }
  const Blocks features = split_.blocks(ranks);
  const Blocks hidden(hidden_, 1);
  if (direction_ == Direction::kOutOf) {
    return block_of_matrix(hidden, 0, features, rank, groups);
  }
  if (inside != Placement::kSharded) {
    return block_of_matrix(hidden, 0, features, rank, groups, /*transposed=*/true);
  }
  // Every rank's features, in the order in which the products are sent.
  const Blocks channels(hidden_, ranks, 1, /*may_be_empty=*/true);
  Shard shard{{split_.total(), hidden_}, {0, channels.size(rank)}, {}};
  for (int r = 0; r < ranks; ++r) {
    const Shard of_rank = block_of_matrix(channels, rank, features, r, groups, true);
    for (Piece piece : of_rank.pieces) {
      piece.local_start[0] += shard.local_sizes[0];
      shard.pieces.push_back(std::move(piece));
    }
    shard.local_sizes[0] += of_rank.local_sizes[0];
  }
  return shard;
}

DistributedProjectionImpl::DistributedProjectionImpl(
    Direction direction,
    std::int64_t hidden,
    const FeatureSplit& split,
    const TransformerOptions& options)
    : direction_(direction), hidden_(hidden), split_(split) {
  ParameterCreation how;
  how.use_normal = options.use_normal_initialization;
  how.initializer_range = options.initializer_range;
  const auto create = parameter_creation_scope(*this, creation_for(parallel(), how));
  weight = create.initialize_shard("weight", weight_shard());
  if (!options.linear_bias) {
    return;
  }
  const bool into = direction == Direction::kInto;
  const Initializer initializer = options.use_normal_initialization
                                      ? constant(0)
                                      : nn::linear_bias(into ? hidden : split.total());
  const Placement inside = inside_placement(parallel());
  if (inside == Placement::kOnMesh) {
    const summa::LinearLayout layout = layout_on_mesh();
    bias =
        first_row_.create(*parallel().mesh, create, "bias", layout.out, layout.groups, initializer);
  } else if (into) {
    const int groups = static_cast<int>(split.groups);
    bias = create.initialize_shard(
        "bias",
        block_of_vector(split.blocks(parallel().size()), parallel().rank(), groups),
        initializer);
  } else if (inside == Placement::kSharded) {
    bias = create.initialize_with_output_partition("bias", {hidden}, initializer);
  } else {
    bias = create.initialize_whole("bias", {hidden}, initializer);
  }
}

/// `rows`: of every rank's own samples.
ProductPlan DistributedProjectionImpl::product_plan(const TensorParallel& now, const Lengths& rows)
    const {
  const bool into = direction_ == Direction::kInto;
  ProductPlan plan;
  switch (inside_placement(now)) {
    case Placement::kSharded:
      plan.result = Result::kShardChannels;
      plan.out = into ? split_.lengths(now.size()) : even_lengths(hidden_, now.size());
      break;
    case Placement::kReplicated:
      plan.operand = into ? Operand::kReplicated : Operand::kSharded;
      plan.result = into ? Result::kSharded : Result::kReplicated;
      break;
    case Placement::kOwnSamples:
      plan.operand = into ? Operand::kOwnSamples : Operand::kSharded;
      plan.result = into ? Result::kSharded : Result::kOwnSamples;
      plan.rows = rows;
      break;
    case Placement::kOnMesh:
      TESSERA_CHECK(false, "products on a mesh are SUMMA's");
  }
  return plan;
}

at::Tensor DistributedProjectionImpl::forward(const at::Tensor& x, const Lengths& samples) {
  const ForwardScope present(*this);
  const TensorParallel now = parallel_now();
  if (inside_placement(now) == Placement::kOnMesh) {
    first_row_.agree(*now.mesh);
    return summa::linear(now.mesh, layout_on_mesh(), x, weight, bias);
  }
  const std::int64_t positions = x.size(1);
  Lengths rows;
  for (const std::int64_t count : samples) {
    rows.push_back(count * positions);
  }
  const at::Tensor y =
      distributed_product(now, product_plan(now, rows), x.reshape({-1, x.size(-1)}), weight, bias);
  return y.view({y.size(0) / positions, positions, y.size(1)});
}

} // namespace tessera::nn
