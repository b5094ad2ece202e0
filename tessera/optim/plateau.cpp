#include "tessera/optim/plateau.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

namespace tessera::optim {

template <typename Visit>
void describe(Visit& visit, PlateauState& state) {
  visit({.name = "factor", .bounds = {.min = 0, .max = 1, .above_min = true}}, state.factor);
  visit({.name = "lowest", .presence = form::Presence::kIfSaid}, state.lowest);
  visit({.name = "without", .bounds = form::at_least(0)}, state.without);
}

Plateau::Plateau(const PlateauOptions& options) : options_(options) {
  if (!(options.factor > 0 && options.factor < 1)) {
    throw ConfigError(str("plateau_factor is ", options.factor, "; write more than 0, below 1"));
  }
  if (options.patience < 1) {
    throw ConfigError(str("plateau_patience is ", options.patience, "; write 1 or more"));
  }
  if (!(options.threshold >= 0 && options.threshold < 1)) {
    throw ConfigError(str("plateau_threshold is ", options.threshold, "; write 0 to below 1"));
  }
}

bool Plateau::observe(double loss) {
  // A share of the size, so that losses below 0 have to fall as well.
  const bool lower = state_.lowest
                         ? loss < *state_.lowest - options_.threshold * std::abs(*state_.lowest)
                         : std::isfinite(loss);
  if (lower) {
    state_.lowest = loss;
    state_.without = 0;
    return false;
  }
  if (++state_.without < options_.patience) {
    return false;
  }
  state_.without = 0;
  state_.factor *= options_.factor;
  return true;
}

std::string Plateau::to_json() const {
  return form::write(state_).dump();
}

void Plateau::set_state(const std::string& json, const std::string& origin) {
  try {
    PlateauState state;
    form::Faults faults(origin);
    form::read(parse_json(json, origin), state, faults);
    state_ = state;
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

} // namespace tessera::optim
