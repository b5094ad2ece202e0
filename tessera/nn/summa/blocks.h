#pragma once

#include <cstdint>
#include <vector>

namespace tessera::nn::two_d {

/// How a dimension is divided among the rows or columns of a mesh: block i is
/// [start(i), start(i) + size(i)). Blocks need not be equal.
class Blocks {
 public:
  /// `length` in `parts` blocks that are multiples of `unit` and differ by one
  /// unit at most, the larger ones first. Attention heads are a unit.
  /// Throws: ShapeError when `unit` does not divide `length`, or when there are
  /// fewer units than parts; it names the lengths that work. `may_be_empty`:
  /// the last parts may be left without a unit.
  Blocks(std::int64_t length, int parts, std::int64_t unit = 1, bool may_be_empty = false);

  int parts() const {
    return static_cast<int>(starts_.size()) - 1;
  }
  std::int64_t length() const {
    return starts_.back();
  }
  std::int64_t start(int part) const {
    return starts_[static_cast<std::size_t>(part)];
  }
  std::int64_t size(int part) const {
    return start(part + 1) - start(part);
  }
  /// The longest block.
  std::int64_t largest() const {
    return size(0);
  }

  bool operator==(const Blocks&) const = default;

 private:
  std::vector<std::int64_t> starts_;
};

} // namespace tessera::nn::two_d
