#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::comm {

/// The name of what starts a collective, such as a module's path; "" where nobody says. Ranks whose
/// calls are alike in all but the caller would compute with each other's numbers.
struct Caller {
  std::array<char, 48> text{}; // the name's end, where it is longer; zeros behind it

  static Caller of(std::string_view name);
  std::string_view name() const;
  /// A number that is equal on all ranks of one job for equal names.
  std::uint32_t hash() const;
  bool operator==(const Caller&) const = default;
};

/// Returns the caller that collectives of this thread are started for.
const Caller& current_caller();

/// Names the caller of the collectives that this thread starts in a scope. Threads: any thread.
class CallerScope {
 public:
  explicit CallerScope(const Caller& caller);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

 private:
  Caller previous_;
};

} // namespace tessera::comm
