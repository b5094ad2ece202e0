#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Returns the fewest insertions, deletions, replacements and swaps of neighbours that turn one
/// text into the other, without regard to case. Only the first 64 letters are compared.
int edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate with the smallest edit distance to `name`; the first of equals.
/// Throws: InternalError when `candidates` is empty.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

/// Returns the nearest candidate when at most a third of the letters of the longer word differ, as
/// in a slip of the pen; else the first one of which `name` is a short form: the initials of its
/// words ("lr" of "learning_rate") or half of its letters ("params" of "parameters"); else "".
std::string nearest_alike(std::string_view name, const std::vector<std::string>& candidates);

/// Returns the words with `separator` between them.
std::string join(const std::vector<std::string>& words, std::string_view separator);

/// Returns the path of a child in a module tree: "layers" and "0" become "layers.0". The path of
/// the root is empty.
std::string join_path(std::string_view parent, std::string_view name);

} // namespace tessera
