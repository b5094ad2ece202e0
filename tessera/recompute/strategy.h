#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string>

namespace tessera::recompute {

inline constexpr int kAllOfARank = std::numeric_limits<int>::max();

/// A region that keeps the results of its products as well (kept_products.h); of a Sequential, each
/// child is one.
inline constexpr const char* kSelective = "selective";

/// Returns how many consecutive children of a Sequential make a region: 1 for "each" and
/// "selective", as many as are on one pipeline rank for "contiguous", x for "group_x" with a whole
/// number x of 1 or more; nothing for a word that is no strategy. Source: Karakus et al. 2021,
/// appendix I.2.
inline std::optional<int> children_of_strategy(const std::string& strategy) {
  if (strategy == "each" || strategy == kSelective) {
    return 1;
  }
  if (strategy == "contiguous") {
    return kAllOfARank;
  }
  const std::string prefix = "group_";
  if (!strategy.starts_with(prefix)) {
    return std::nullopt;
  }
  int children = 0;
  const char* end = strategy.data() + strategy.size();
  const auto read = std::from_chars(strategy.data() + prefix.size(), end, children);
  const bool whole = read.ec == std::errc() && read.ptr == end && children >= 1;
  return whole ? std::optional(children) : std::nullopt;
}

/// The strategies, for error texts.
inline constexpr const char* kStrategies =
    "\"each\", \"selective\", \"contiguous\" or \"group_x\" with a whole number x of 1 or more, "
    "such as "
    "\"group_3\"";

} // namespace tessera::recompute
