#pragma once

#include <string>
#include <vector>

namespace tessera::data {

/// A prepared folder and how often samples come from it, compared with the others.
struct MixturePart {
  std::string directory;
  double weight = 1;

  bool operator==(const MixturePart&) const = default;
};

} // namespace tessera::data
