#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <vector>

#include "tessera/config/config.h"

namespace tessera::config {

/// What a broken rule tells the user: what was found and what to write instead.
class Saying {
 public:
  Saying(const char* text) : make_([text](const Config&) { return std::string(text); }) {}
  template <std::invocable<const Config&> Make>
  Saying(Make make) : make_(std::move(make)) {}

  std::string operator()(const Config& config) const {
    return make_(config);
  }

 private:
  std::function<std::string(const Config&)> make_;
};

/// A rule between keys. Not looked at when one of its keys is wrong by itself,
/// so that one mistake gives one message.
struct Coupling {
  std::string name; // for tests and documentation: "tensor needs ddp"
  std::string rule; // one sentence
  std::vector<std::string> keys;
  bool (*when)(const Config&); // the rule is broken
  Saying say;

  /// Returns what to tell the user; "" when the rule is kept.
  std::string broken(const Config& config) const {
    return when(config) ? say(config) : "";
  }
};

/// Returns every rule between keys, in the order of the documentation.
const std::vector<Coupling>& couplings();

} // namespace tessera::config
