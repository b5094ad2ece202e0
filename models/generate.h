#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::models {

struct GenerateOptions {
  std::int64_t tokens = 100; // at most
  double temperature = 0.8; // 0: always the likeliest token
  std::int64_t top_k = 40; // only among the k likeliest; 0: among all
  std::uint64_t seed = 0;
  std::int64_t context = 0; // longest input of the model; longer loses its start
  std::int32_t stop = -1; // ends early at this token, which is not returned
};

/// Continues a row of token ids: asks `logits_of` (ids_1S -> logits_1SV, a GPT
/// or whatever stands for one) for the next token, again and again. Returns the
/// new tokens. The same seed gives the same tokens. `after_token` is called with
/// all new tokens after each.
/// Cost: one forward of at most `context` positions a token (nothing is kept
/// between them).
/// Throws: ConfigError for an empty prompt or an option out of range.
std::vector<std::int32_t> generate(
    const std::function<at::Tensor(const at::Tensor&)>& logits_of,
    const std::vector<std::int32_t>& prompt,
    const GenerateOptions& options,
    const std::function<void(const std::vector<std::int32_t>&)>& after_token = {});

} // namespace tessera::models
