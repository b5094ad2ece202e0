#pragma once

#include <cstdint>

#include "models/objectives/draws.h"
#include "models/objectives/token_table.h"

// Masked language modelling: some tokens of a sample are hidden, and the model predicts them.
// Source: Devlin et al. 2019, section 3.1 and appendix A.1; Liu et al. 2019, section 4.1 (masks
// drawn anew each time a sample comes).
namespace tessera::models {

/// Tokens that a mask needs, as ids.
struct MaskTokens {
  std::int64_t begin = 0; // before a sample: [CLS], <s>
  std::int64_t end = 0; // behind it: [SEP], </s>
  std::int64_t mask = 0; // in place of a hidden token
};

/// Returns 15 % of the positions between begin and end, at least one; the same for each sample.
std::int64_t masked_positions(std::int64_t sequence);

/// Makes one sample of `sequence` positions of `sequence` - 2 tokens: begin, tokens, end.
///
/// masked_positions(sequence) of the tokens are drawn, marks of the table only where the others do
/// not suffice. Each is replaced by the mask with probability 0.8, by a token drawn from all that
/// are no marks with 0.1, and stays with 0.1. `targets` has the token itself there, `ignored`
/// elsewhere. Needs 3 positions at least.
void mask_sample(
    const TokenTable& table,
    const MaskTokens& marks,
    const std::int64_t* tokens,
    std::int64_t sequence,
    Draws draws,
    std::int64_t ignored,
    std::int64_t* ids,
    std::int64_t* targets);

} // namespace tessera::models
