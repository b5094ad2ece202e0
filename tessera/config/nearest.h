#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::config {

/// Fewest insertions, deletions, replacements and swaps of neighbours that turn
/// one text into the other, without regard to case.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name`; the first of equals. `candidates` must not
/// be empty.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

} // namespace tessera::config
