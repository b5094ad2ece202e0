#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/config/keys.h"

namespace tessera::config {

/// Everything that is wrong with one configuration, gathered so that a user
/// mends a file in one go.
class Findings {
 public:
  void add(std::string line) {
    lines_.push_back(std::move(line));
  }
  /// An error of one key; rules that look at the key are then left out.
  void add(const Key& key, const std::string& message);
  /// Under which name (alias) the user wrote a key.
  void spelled(const Key& key, const std::string& name) {
    spelling_[key.name] = name;
  }

  /// Ranges, availability, couplings of everything not already wrong.
  void check(const Config& config);

  bool empty() const {
    return lines_.empty();
  }
  /// Throws: ConfigError with all lines under `origin`; nothing when empty.
  void throw_any(const std::string& origin) const;

 private:
  std::vector<std::string> lines_;
  std::set<std::string> wrong_;
  std::map<std::string, std::string> spelling_;
};

} // namespace tessera::config
