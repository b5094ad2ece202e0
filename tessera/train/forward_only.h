#pragma once

#include <optional>

#include <ATen/core/grad_mode.h>

namespace tessera::train {

/// A step in this scope runs forwards only, when `on`. Threads: the scope belongs to its thread.
class ForwardOnly {
 public:
  explicit ForwardOnly(bool on);
  ~ForwardOnly();
  ForwardOnly(const ForwardOnly&) = delete;
  ForwardOnly& operator=(const ForwardOnly&) = delete;

  /// Returns whether a step that runs forwards only is running on this process.
  static bool running();

 private:
  bool on_;
  std::optional<at::NoGradGuard> no_grad_;
};

} // namespace tessera::train
