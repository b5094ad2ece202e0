#include "tessera/nn/layers/dropout.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/parallel/random_streams.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/recompute/kept_dropout.h"

namespace tessera::nn {

namespace {

constexpr const char* kWhat = "dropout in a distributed layer";

/// Returns the rows of the ranks `members` of the TP_GROUP, rank by rank, equally many of each.
random::Place
rows_of_ranks(const random::Stream& stream, const std::vector<int>& members, std::int64_t rows) {
  const auto ranks = static_cast<std::int64_t>(members.size());
  if (rows % ranks != 0) {
    throw UserError(tessera::str(
        kWhat,
        ": ",
        ranks,
        " ranks bring ",
        rows,
        " samples together; \"random\": \"layout_independent\" needs equally many from each. Drop "
        "the last incomplete batch, or write \"random\": \"by_task\""));
  }
  const std::int64_t each = rows / ranks;
  random::Place place;
  for (const int member : members) {
    const int data_rank = stream.layout->data_ranks_of_group.at(static_cast<std::size_t>(member));
    const std::int64_t first = stream.first_row_of(data_rank, each);
    for (std::int64_t i = 0; i < each; ++i) {
      place.rows.push_back(first + i);
    }
  }
  return place;
}

/// Returns the rows of all ranks of the TP_GROUP, in its order.
random::Place
rows_of_group(const random::Stream& stream, const TensorParallel& parallel, std::int64_t rows) {
  if (parallel.prescaled_batch || parallel.group == nullptr) {
    return random::own_place(stream, rows, kWhat);
  }
  std::vector<int> members;
  for (int rank = 0; rank < parallel.size(); ++rank) {
    members.push_back(rank);
  }
  return rows_of_ranks(stream, members, rows);
}

/// Returns the rows of this rank's mesh row, see summa::Boundary.
random::Place
rows_of_mesh(const random::Stream& stream, const TensorParallel& parallel, std::int64_t rows) {
  const summa::Mesh& mesh = *summa::mesh_of(parallel);
  if (!parallel.prescaled_batch) {
    return rows_of_ranks(stream, mesh.layout().row(mesh.row()), rows);
  }
  random::Place place;
  place.first_row = stream.first_row(rows * mesh.rows()) + mesh.row() * rows;
  return place;
}

} // namespace

random::Place place_of_activation(
    const random::Stream& stream,
    const TensorParallel& parallel,
    Placement placement,
    std::int64_t rows,
    std::int64_t dims,
    std::int64_t channels) {
  random::Place place;
  random::Span mine;
  switch (placement) {
    case Placement::kOwnSamples:
    case Placement::kReplicated:
      return random::own_place(stream, rows, kWhat);
    case Placement::kSharded:
      place = rows_of_group(stream, parallel, rows);
      mine = {even_range(channels, parallel.size(), parallel.rank()).start, channels};
      break;
    case Placement::kOnMesh: {
      place = rows_of_mesh(stream, parallel, rows);
      const int column = summa::mesh_of(parallel)->column();
      mine = {mesh_blocks(parallel, channels, kWhat).over_columns.start(column), channels};
      break;
    }
  }
  place.others.resize(static_cast<std::size_t>(dims - 1));
  place.others.back() = mine;
  return place;
}

random::Place place_of_attention(
    const random::Stream& stream,
    const TensorParallel& parallel,
    std::int64_t rows,
    std::int64_t first_head,
    std::int64_t all_heads) {
  const bool on_mesh = inside_placement(parallel) == Placement::kOnMesh;
  random::Place place =
      on_mesh ? rows_of_mesh(stream, parallel, rows) : rows_of_group(stream, parallel, rows);
  place.others = {{first_head, all_heads}};
  return place;
}

at::Tensor drop(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement placement,
    double probability,
    bool training,
    std::int64_t channels) {
  if (!training || probability <= 0) {
    return x;
  }
  if (random::Stream* stream = random::current()) {
    const auto draw = [&] {
      const random::Place place =
          place_of_activation(*stream, parallel, placement, x.size(0), x.dim(), channels);
      return random::dropout_mask(
          x.sizes(), x.options(), probability, random::next_use(*stream), place);
    };
    return recompute::kept_dropout(x, {draw, [&] { random::next_use(*stream); }});
  }
  switch (placement) {
    case Placement::kReplicated:
      return recompute::kept_dropout(x, {replicated_mask(parallel, x, probability)});
    case Placement::kSharded:
      return recompute::kept_dropout(x, {sharded_mask(parallel, x, probability)});
    case Placement::kOnMesh:
      // Without this, blocks of one activation would lose the same pattern on ranks whose
      // generators are equal: with equal batches, or when a script seeds all its ranks alike.
      return recompute::kept_dropout(x, {sharded_mask(parallel, x, probability)});
    case Placement::kOwnSamples:
      break;
  }
  return recompute::kept_dropout(x, probability);
}

} // namespace tessera::nn
