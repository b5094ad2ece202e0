#include "tessera/config/findings.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/config/couplings.h"

namespace tessera::config {

void Findings::add(const Key& key, const std::string& message) {
  const auto spelling = spelling_.find(key.name);
  const bool alias = spelling != spelling_.end() && spelling->second != key.name;
  add((alias ? spelling->second + " (" + key.name + ")" : key.name) + ": " + message);
  wrong_.insert(key.name);
}

void Findings::check(const Config& config) {
  std::vector<std::pair<const Key*, std::string>> unavailable;
  for (const Key& key : keys()) {
    const Value value = get(key, config);
    if (wrong_.count(key.name) > 0 || std::holds_alternative<std::monostate>(value)) {
      continue;
    }
    if (!in_range(key, value)) {
      add(key, str("found ", to_text(value), "; write ", allowed(key)));
    } else if (key.status == Status::kNotYet && value != get(key, Config{})) {
      unavailable.emplace_back(
          &key,
          str("not available in this version; found ",
              to_text(value),
              ", leave it out",
              key.unsaid.empty() ? " or write " + default_of(key) : "",
              key.reason.empty() ? "" : " (" + key.reason + ")"));
    }
  }
  for (const Coupling& coupling : couplings()) {
    const bool readable =
        std::none_of(coupling.keys.begin(), coupling.keys.end(), [&](const std::string& key) {
          return wrong_.count(key) > 0;
        });
    const std::string message = readable ? coupling.broken(config) : "";
    if (!message.empty()) {
      add(message);
    }
  }
  // Last, since a key that is not available still has rules worth telling.
  for (const auto& [key, message] : unavailable) {
    add(*key, message);
  }
}

void Findings::throw_any(const std::string& origin) const {
  if (lines_.empty()) {
    return;
  }
  if (lines_.size() == 1) {
    throw ConfigError(origin + ": " + lines_.front());
  }
  std::string text = str(origin, ": ", lines_.size(), " errors");
  for (const std::string& line : lines_) {
    text += "\n  " + line;
  }
  throw ConfigError(text);
}

void validate(const Config& config) {
  Findings findings;
  findings.check(config);
  findings.throw_any("config");
}

} // namespace tessera::config
