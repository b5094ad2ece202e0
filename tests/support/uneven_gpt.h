#pragma once

#include "models/gpt.h"
#include "tests/support/counting_tokens.h"

namespace tessera::testing {

constexpr int kTokens = 6;
constexpr int kVocabulary = 33; // no multiple of 2

/// A GPT of two blocks whose sizes neither two ranks nor a mesh divide; without dropout.
inline models::GptOptions uneven_gpt_options() {
  models::GptOptions options;
  options.vocab_size = kVocabulary;
  options.n_positions = 7;
  options.n_embd = 12;
  options.n_layer = 2;
  options.n_head = 3; // 2 and 1 on two ranks
  options.n_inner = 25;
  options.dropout = 0;
  return options;
}

} // namespace tessera::testing
