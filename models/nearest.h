#pragma once

#include <string>
#include <vector>

namespace tessera::models {

/// The candidate with the smallest edit distance to `word`, for messages.
/// `candidates` is not empty.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

} // namespace tessera::models
