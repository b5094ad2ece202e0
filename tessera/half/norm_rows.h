#pragma once

#include <ATen/core/Tensor.h>

/// What a layer norm of bf16 finds out about its rows before it computes a result, which takes
/// nearly all of its time: who runs a norm twice can keep it from one time to the next.
namespace tessera::half {

/// Of each row, in the shape and type in which libtorch returns them.
struct NormRows {
  at::Tensor mean;
  at::Tensor rstd; // the reciprocal of the deviation
};

struct NormRowsKeeper {
  /// Returns those of the norm that this thread computes now, or undefined tensors.
  NormRows (*given)();
  void (*keep)(const NormRows& rows);
};

/// Asks `keeper` from now on, in every thread, about each norm whose result follows from its rows
/// (quicken_bf16). Threads: any, before norms are computed that it keeps.
void set_norm_rows_keeper(const NormRowsKeeper& keeper);

} // namespace tessera::half
