#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::checkpoint {

/// Which checkpoints of a folder stay when another one is complete.
struct Retention {
  /// So many of the youngest; 0 keeps all.
  int newest = 0;
  /// Besides, every so many-th save, for good; 0: none.
  int every = 0;
  /// Besides, the one with the lowest score.
  bool best = false;
};

/// What a complete checkpoint says of itself.
struct Saving {
  std::string tag;
  std::uint64_t sequence = 0; // Meta::sequence
  bool for_good = false; // Meta::for_good
  std::optional<double> score; // Meta::score
};

/// The one with the lowest score, of equals the oldest; none when no one has a score. `all` in any
/// order.
std::optional<Saving> best_of(const std::vector<Saving>& all);

/// The tags that go, the oldest first. It is a function of what the checkpoints say of themselves,
/// so a run that died and was resumed decides as one that was not.
std::vector<std::string> tags_to_remove(std::vector<Saving> all, const Retention& retention);

} // namespace tessera::checkpoint
