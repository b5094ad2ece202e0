// What the ranks of a TP_GROUP tell each other when a StateLayout is made.
#include <algorithm>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/state/layout.h"
#include "tessera/tensor/value.h"

namespace tessera::state {

namespace {

using Sizes = std::vector<std::int64_t>;
using PackedPiece = std::tuple<Sizes, Sizes, Sizes>;
// name, full sizes, local sizes, pieces, (distributed, scaled batch, parameter)
using PackedHeld =
    std::tuple<std::string, Sizes, Sizes, std::vector<PackedPiece>, std::vector<bool>>;
using PackedUnit = std::tuple<std::string, std::vector<PackedHeld>>;

std::vector<PackedPiece> packed(const nn::Shard& shard) {
  std::vector<PackedPiece> pieces;
  for (const nn::Piece& piece : shard.pieces) {
    pieces.emplace_back(piece.full_start, piece.local_start, piece.sizes);
  }
  return pieces;
}

} // namespace

// Tells every rank of the TP_GROUP what the others hold of every unit.
void StateLayout::exchange() {
  comm::ProcessGroup& group = context_.group(Group::kTP);
  if (group.size() == 1) {
    return;
  }
  std::vector<PackedUnit> mine;
  for (const Unit& unit : units_) {
    std::vector<PackedHeld> list;
    for (const auto& [name, by_rank] : unit.held) {
      const Held& held = by_rank.begin()->second;
      list.emplace_back(
          name,
          held.shard.full_sizes,
          held.shard.local_sizes,
          packed(held.shard),
          std::vector<bool>{held.distributed, held.scaled_batch, held.parameter});
    }
    mine.emplace_back(unit.path, std::move(list));
  }
  const auto all = comm::all_gather_object(*context_.world, group, pack(mine));
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto theirs = unpack<std::vector<PackedUnit>>(all[rank]);
    for (std::size_t i = 0; i < std::max(theirs.size(), units_.size()); ++i) {
      if (i >= theirs.size() || i >= units_.size() || std::get<0>(theirs[i]) != units_[i].path) {
        throw ConfigError(
            str("ranks ",
                context_.world->rank(),
                " and ",
                group.ranks()[rank],
                " of one tensor-parallel group built different models: their "
                "distributed modules differ from the ",
                i + 1,
                ". on; build the model alike on every rank"));
      }
      for (const auto& [name, full, local, pieces, flags] : std::get<1>(theirs[i])) {
        Held held;
        held.shard.full_sizes = full;
        held.shard.local_sizes = local;
        for (const auto& [full_start, local_start, sizes] : pieces) {
          held.shard.pieces.push_back({full_start, local_start, sizes});
        }
        held.distributed = flags.at(0);
        held.scaled_batch = flags.at(1);
        held.parameter = flags.at(2);
        units_[i].held[name][rank] = std::move(held);
      }
    }
  }
}

} // namespace tessera::state
