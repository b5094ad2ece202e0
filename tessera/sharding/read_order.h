#pragma once

#include <cstddef>
#include <vector>

namespace tessera::sharding {

/// The order in which a rank's operators read parameters: learnt in one step, expected in the next.
/// A step that takes another way does not lose the position, because it may come back.
/// Threads: one at a time.
class ReadOrder {
 public:
  /// The longest order that is learnt, so that an evaluation without end needs no memory without
  /// end.
  static constexpr std::size_t kLongest = 1 << 16;

  /// The order that was learnt since the last call is expected from now on.
  void begin_step();
  void read(int parameter);
  /// Returns the next different parameters, at most `count`, without those of `besides`.
  std::vector<int> next(std::size_t count, const std::vector<int>& besides) const;

  /// Returns length of the order that is expected.
  std::size_t length() const {
    return order_.size();
  }

 private:
  std::vector<int> order_; // of the step before
  std::vector<int> learning_;
  std::size_t next_ = 0; // position in order_ behind the last read
};

} // namespace tessera::sharding
