#pragma once

#include <random>

namespace tessera::simulator {

/// Draws numbers, the same ones for a seed.
class Chance {
 public:
  explicit Chance(unsigned seed) : random_(seed) {}

  int from(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  bool one_in(int count) {
    return from(1, count) == 1;
  }

 protected:
  std::mt19937 random_;
};

} // namespace tessera::simulator
