#include "models/objectives/masked.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera::models {

namespace {

constexpr double kMaskedShare = 0.15;
constexpr double kReplacedByMask = 0.8;
constexpr double kReplacedByOther = 0.1;

/// Any token of the table that is no mark.
std::int64_t other_token(const TokenTable& table, Draws& draws) {
  // Marks are few: a hundred draws that all hit one mean that there is nothing else.
  constexpr int kMostDraws = 100;
  std::int64_t token = draws.below(table.tokens);
  for (int i = 0; i < kMostDraws && table.is_special(token); ++i) {
    token = draws.below(table.tokens);
  }
  return token;
}

} // namespace

std::int64_t masked_positions(std::int64_t sequence) {
  // Halves go to the even neighbour, as in the authors' program.
  const double share = std::nearbyint(kMaskedShare * static_cast<double>(sequence - 2));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share));
}

void mask_sample(
    const TokenTable& table,
    const MaskTokens& marks,
    const std::int64_t* tokens,
    std::int64_t sequence,
    Draws draws,
    std::int64_t ignored,
    std::int64_t* ids,
    std::int64_t* targets) {
  ids[0] = marks.begin;
  std::copy(tokens, tokens + sequence - 2, ids + 1);
  ids[sequence - 1] = marks.end;
  std::fill(targets, targets + sequence, ignored);
  std::vector<std::int64_t> chosen;
  std::vector<std::int64_t> others;
  for (std::int64_t place = 1; place < sequence - 1; ++place) {
    (table.is_special(ids[place]) ? others : chosen).push_back(place);
  }
  const std::int64_t count = masked_positions(sequence);
  const auto ordinary = std::min<std::int64_t>(count, static_cast<std::int64_t>(chosen.size()));
  draws.shuffle_front(chosen, ordinary);
  draws.shuffle_front(others, count - ordinary);
  chosen.resize(static_cast<std::size_t>(ordinary));
  chosen.insert(chosen.end(), others.begin(), others.begin() + (count - ordinary));
  for (const std::int64_t place : chosen) {
    targets[place] = ids[place];
    const double fate = draws.share();
    if (fate < kReplacedByMask) {
      ids[place] = marks.mask;
    } else if (fate < kReplacedByMask + kReplacedByOther) {
      ids[place] = other_token(table, draws);
    }
  }
}

} // namespace tessera::models
