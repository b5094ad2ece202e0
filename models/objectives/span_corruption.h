#pragma once

#include <cstdint>

#include "models/objectives/draws.h"

// Span corruption: runs of tokens are replaced by a sentinel each, and the model predicts the
// tokens.
// Source: Raffel et al. 2020, sections 3.1.4 and 3.3.4, and the authors' random_spans_helper and
// random_spans_noise_mask.
namespace tessera::models {

/// The lengths of a sample, which are the same for all samples.
struct SpanLengths {
  std::int64_t tokens = 0; // of the text
  std::int64_t noise = 0; // of them cut out: 15 %
  std::int64_t spans = 0; // in so many runs: of 3 on average
  std::int64_t inputs = 0; // what is left, a sentinel for each run, and the end
  std::int64_t targets = 0; // what was cut out, a sentinel before each run, and the end
};

/// Returns the lengths of the longest text whose inputs fill `sequence` positions: 512 positions
/// are made of 568 tokens and have 114 targets. Throws: ConfigError for a sequence of fewer than 4.
SpanLengths span_lengths(std::int64_t sequence);

/// The ids that are not those of a text.
struct SpanTokens {
  std::int64_t end = 0; // </s>
  std::int64_t first_sentinel = 0; // sentinel i is first_sentinel - i, as <extra_id_i> of T5
};

/// Makes one sample from `tokens`, which has lengths.tokens ids, and writes it to `inputs` and
/// `targets`. A sample begins with a run that stays and ends with one that is replaced. The lengths
/// of the runs of either kind are drawn uniformly from all ways to divide them.
void corrupt_sample(
    const SpanLengths& lengths,
    const SpanTokens& marks,
    const std::int64_t* tokens,
    Draws draws,
    std::int64_t* inputs,
    std::int64_t* targets);

} // namespace tessera::models
