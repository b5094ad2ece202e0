#pragma once

#include <random>
#include <string>
#include <vector>

namespace tessera::fuzz {

/// `seeds[base]` after one to eight small changes: bits, bytes, pieces removed,
/// repeated, or taken from another seed, numbers replaced by those at the
/// limits of their types. Depends on the arguments alone.
std::string
mutated(const std::vector<std::string>& seeds, std::size_t base, std::mt19937_64& random);

} // namespace tessera::fuzz
