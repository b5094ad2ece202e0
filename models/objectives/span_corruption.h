#pragma once

#include <cstdint>

#include "models/objectives/draws.h"

// Span corruption: runs of tokens are cut out of a sample, a sentinel stands in the place of each,
// and the model says what stood there.
// Source: Raffel et al. 2020, sections 3.1.4 and 3.3.4, and the authors' random_spans_helper and
// random_spans_noise_mask.
namespace tessera::models {

/// Lengths of a sample; the same for each.
struct SpanLengths {
  std::int64_t tokens = 0; // of the text
  std::int64_t noise = 0; // of them cut out: 15 %
  std::int64_t spans = 0; // in so many runs: of 3 on average
  std::int64_t inputs = 0; // what is left, a sentinel for each run, and the end
  std::int64_t targets = 0; // what was cut out, a sentinel before each run, and the end
};

/// The lengths of the longest text whose inputs fill `sequence` positions: 512 positions are made
/// of 568 tokens and have 114 targets. Throws: ConfigError for a sequence of fewer than 4.
SpanLengths span_lengths(std::int64_t sequence);

/// Ids beside those of the text.
struct SpanTokens {
  std::int64_t end = 0; // </s>
  std::int64_t first_sentinel = 0; // sentinel i is first_sentinel - i, as <extra_id_i> of T5
};

/// Makes one sample: `tokens` has lengths.tokens ids, `inputs` and `targets` get theirs. A text
/// begins with what stays and ends with a run that is cut out. Lengths of the runs of either kind
/// are drawn from all ways to divide them, each as likely.
void corrupt_sample(
    const SpanLengths& lengths,
    const SpanTokens& marks,
    const std::int64_t* tokens,
    Draws draws,
    std::int64_t* inputs,
    std::int64_t* targets);

} // namespace tessera::models
