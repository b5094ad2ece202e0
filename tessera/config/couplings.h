#pragma once

#include <string>
#include <vector>

#include "tessera/config/config.h"

namespace tessera::config {

/// A rule between keys. Not looked at when one of its keys is wrong by itself,
/// so that one mistake gives one message.
struct Coupling {
  std::string name; // for tests and documentation: "tensor needs ddp"
  std::string rule; // one sentence
  std::vector<std::string> keys;
  /// What was found and what to write instead; "" when the rule is kept.
  std::string (*broken)(const Config&);
};

/// Every rule between keys, in the order of the documentation.
const std::vector<Coupling>& couplings();

} // namespace tessera::config
