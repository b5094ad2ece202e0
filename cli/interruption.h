#pragma once

#include <atomic>
#include <csignal>

namespace tessera::cli {

/// While this lives, the first Ctrl-C (SIGINT) is noted in place of ending the program; a second
/// one ends it as usual. One at a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// Becomes true at the first Ctrl-C.
  const std::atomic<bool>& asked() const;

 private:
  struct sigaction before_ {};
};

} // namespace tessera::cli
