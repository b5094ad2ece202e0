#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/random/stream.h"

namespace tessera::random {

/// Which part of a dimension is here: it begins at `first` of `whole` in all; `whole` 0: all of it.
struct Span {
  std::int64_t first = 0;
  std::int64_t whole = 0;
};

/// Where a part of a tensor lies in the whole one, whose first dimension is the step's batch.
struct Place {
  /// Of each row that is here, its number in the whole; empty: rows that follow one another.
  std::vector<std::int64_t> rows;
  std::int64_t first_row = 0; // where `rows` is empty
  /// Of the dimensions behind the first; those that are not said are here whole.
  std::vector<Span> others;
};

/// The mask of inverted dropout of a part of a tensor, of these sizes, type and device:
/// 1 / (1 - probability) where an element stays, else 0. Element i of the whole tensor, counted row
/// by row, stays when word i % 4 of Philox at counter (i / 4, number of the use, step) is at least
/// probability * 2^32, so every part has what the whole has there.
/// Cost: ten rounds for four elements, on the cores of the processor; for another device a copy.
/// Not collective. Threads: any.
at::Tensor dropout_mask(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    double probability,
    const Use& use,
    const Place& place);

/// Inverted dropout of a tensor whose rows are this rank's samples of the microbatch (or equally
/// many rows for each of them, in order), with the next use of `stream`.
/// Throws: UserError when the samples do not divide the rows.
at::Tensor dropout(Stream& stream, const at::Tensor& x, double probability);

/// The place of such a tensor, of `rows` rows.
/// Throws: UserError as `dropout`; `what` begins the text.
Place own_place(const Stream& stream, std::int64_t rows, const char* what);

} // namespace tessera::random
