#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::topology {

/// The sizes of the three axes along which ranks are laid out.
struct Degrees {
  int pipeline = 1;
  int tensor = 1;
  int reduced_data = 1;

  int world_size() const {
    return pipeline * tensor * reduced_data;
  }
  bool operator==(const Degrees&) const = default;
};

/// The position of a rank along the three axes.
struct Coordinates {
  int rdp = 0;
  int pp = 0;
  int tp = 0;

  bool operator==(const Coordinates&) const = default;
};

/// The order in which the axes vary over ranks; the right-most letter varies fastest. It is a
/// permutation of "DPT".
///
/// Source: Karakus et al. 2021, appendix I.1, `placement_strategy`.
class PlacementStrategy {
 public:
  /// Accepts "cluster" (= DPT), "spread" (= TPD) or a permutation of D, P, T.
  /// Throws: ConfigError that lists the allowed values.
  explicit PlacementStrategy(std::string_view strategy);

  const std::string& letters() const {
    return letters_;
  }

 private:
  std::string letters_;
};

/// The groups a rank belongs to. Ranks of a DP group hold the same pipeline partition (tp x rdp),
/// ranks of an RDP group the same parameters, ranks of an MP group one whole model replica (pp x
/// tp).
enum class Group { kWorld, kPP, kTP, kDP, kRDP, kMP };

inline constexpr std::array<Group, 6> kAllGroups =
    {Group::kWorld, Group::kPP, Group::kTP, Group::kDP, Group::kRDP, Group::kMP};

/// Returns "world", "pp", "tp", "dp", "rdp" or "mp".
std::string_view name_of(Group group);

/// Converts between ranks, coordinates and groups. It does not communicate.
///
/// The members of every group are ordered by global rank; with D right of T, `dp_rank` is therefore
/// not rdp * tp_size + tp.
class RankLayout {
 public:
  RankLayout(Degrees degrees, PlacementStrategy placement);

  const Degrees& degrees() const {
    return degrees_;
  }
  int world_size() const {
    return degrees_.world_size();
  }
  Coordinates coordinates(int rank) const;

  /// Returns the global ranks, ascending, of the group of this kind that contains `rank`.
  std::vector<int> members(Group group, int rank) const;

  /// Returns all groups of one kind, ordered by their smallest member.
  std::vector<std::vector<int>> all(Group group) const;

  /// Returns the position of `rank` inside its group of this kind.
  int rank_in(Group group, int rank) const;

  int size_of(Group group) const;

 private:
  Degrees degrees_;
  PlacementStrategy placement_;
};

} // namespace tessera::topology
