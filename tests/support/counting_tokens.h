#pragma once

#include "tests/support/parity.h"

/// Texts for language models that are trained in tests.
namespace tessera::testing {

/// Rows that count up from their number in `start` [rows, 1], so that there is something to learn:
/// x holds `tokens` tokens a row, y the token that follows each.
inline Batch counting_from(const torch::Tensor& start, int tokens, int vocabulary) {
  const auto text = (start + torch::arange(tokens + 1)) % vocabulary;
  return {text.narrow(1, 0, tokens).contiguous(), text.narrow(1, 1, tokens).contiguous()};
}

/// The rows of step `step` count from random numbers, which are equal on every rank.
inline Batch counting_tokens(int step, int rows, int tokens, int vocabulary) {
  torch::manual_seed(500 + step);
  return counting_from(torch::randint(0, vocabulary, {rows, 1}), tokens, vocabulary);
}

/// The mean over all tokens of [rows, tokens, vocabulary] and [rows, tokens].
inline torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

} // namespace tessera::testing
