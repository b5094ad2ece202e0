#pragma once

#include <cstdint>
#include <memory>

namespace tessera::bench {

/// C = A B of N x N matrices in f32 by ScaLAPACK's psgemm on a q x r grid of
/// all ranks, in square blocks of N / r at most 256 wide, which is
/// where it was fastest. Where the library was not found when building, it is
/// not available and `multiply` throws.
class Scalapack {
 public:
  static bool available();
  /// Collective over all ranks. Matrices are random.
  Scalapack(int mesh_rows, int mesh_columns, std::int64_t n);
  ~Scalapack();
  void multiply();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace tessera::bench
