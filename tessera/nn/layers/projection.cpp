#include "tessera/nn/layers/projection.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/parallel/parameter_creation.h"

namespace tessera::nn {

namespace {

/// Rows of the features of `rank`, one piece a group, appended to a shard.
void add_rows(
    const FeatureSplit& split,
    int ranks,
    int rank,
    Range columns,
    bool two_dimensions,
    Shard& shard) {
  const Range parts = even_range(split.parts, ranks, rank);
  for (std::int64_t group = 0; group < split.groups; ++group) {
    Piece piece;
    piece.full_start = {(group * split.parts + parts.start) * split.width};
    piece.local_start = {shard.local_sizes[0]};
    piece.sizes = {parts.size() * split.width};
    if (two_dimensions) {
      piece.full_start.push_back(columns.start);
      piece.local_start.push_back(0);
      piece.sizes.push_back(columns.size());
    }
    shard.local_sizes[0] += piece.sizes[0];
    shard.pieces.push_back(std::move(piece));
  }
}

/// Columns of the features of `rank`.
Shard column_shard(const FeatureSplit& split, std::int64_t rows, int ranks, int rank) {
  const Range parts = even_range(split.parts, ranks, rank);
  Shard shard;
  shard.full_sizes = {rows, split.total()};
  shard.local_sizes = {rows, 0};
  for (std::int64_t group = 0; group < split.groups; ++group) {
    const std::int64_t width = parts.size() * split.width;
    shard.pieces.push_back(
        {{0, (group * split.parts + parts.start) * split.width},
         {0, shard.local_sizes[1]},
         {rows, width}});
    shard.local_sizes[1] += width;
  }
  return shard;
}

} // namespace

Lengths FeatureSplit::lengths(int ranks) const {
  Lengths result;
  for (const std::int64_t own : even_lengths(parts, ranks)) {
    result.push_back(groups * own * width);
  }
  return result;
}

Blocks FeatureSplit::on_mesh(int side) const {
  return {parts * width, side, width, /*may_be_empty=*/true};
}

two_d::LinearLayout DistributedProjectionImpl::layout_on_mesh() const {
  const Blocks hidden = mesh_blocks(parallel(), hidden_);
  const Blocks features = split_.on_mesh(hidden.parts());
  const int groups = static_cast<int>(split_.groups);
  return direction_ == Direction::kInto ? two_d::LinearLayout{hidden, features, groups}
                                        : two_d::LinearLayout{features, hidden, 1};
}

Shard DistributedProjectionImpl::weight_shard() const {
  const int ranks = parallel().size();
  const int rank = parallel().rank();
  const Placement inside = inside_placement(parallel());
  if (inside == Placement::kOnMesh) {
    const two_d::Mesh& mesh = *parallel().mesh;
    const two_d::LinearLayout layout = layout_on_mesh();
    return block_of_matrix(
        layout.in, mesh.row(), layout.out, mesh.column(), layout.groups, /*transposed=*/true);
  }
  if (direction_ == Direction::kOutOf) {
    return column_shard(split_, hidden_, ranks, rank);
  }
  Shard shard;
  shard.full_sizes = {split_.total(), hidden_};
  if (inside == Placement::kSharded) {
    // Every rank's features, in the order in which the products are sent.
    const Range columns = even_range(hidden_, ranks, rank);
    shard.local_sizes = {0, columns.size()};
    for (int r = 0; r < ranks; ++r) {
      add_rows(split_, ranks, r, columns, true, shard);
    }
  } else {
    shard.local_sizes = {0, hidden_};
    add_rows(split_, ranks, rank, {0, hidden_}, true, shard);
  }
  return shard;
}

Shard DistributedProjectionImpl::bias_shard() const {
  Shard shard;
  shard.full_sizes = {split_.total()};
  shard.local_sizes = {0};
  add_rows(split_, parallel().size(), parallel().rank(), {}, false, shard);
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
    const two_d::LinearLayout layout = layout_on_mesh();
    bias =
        first_row_.create(*parallel().mesh, create, "bias", layout.out, layout.groups, initializer);
  } else if (into) {
    bias = create.initialize_shard("bias", bias_shard(), initializer);
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
  const TensorParallel now = parallel_now();
  if (inside_placement(now) == Placement::kOnMesh) {
    first_row_.agree(*now.mesh);
    return two_d::linear(now.mesh, layout_on_mesh(), x, weight, bias);
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
