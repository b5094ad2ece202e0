#include "models/generate.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::models {

namespace {

void check(const std::vector<std::int32_t>& prompt, const GenerateOptions& options) {
  const auto refuse = [](const char* name, double found, const char* wanted) {
    throw ConfigError(tessera::str("generate: ", name, " is ", found, ", write ", wanted));
  };
  if (prompt.empty()) {
    throw ConfigError("generate: the prompt has no token, give at least one");
  }
  if (options.tokens < 0) {
    refuse("tokens", static_cast<double>(options.tokens), "0 or more");
  }
  if (!(options.temperature >= 0)) {
    refuse("temperature", options.temperature, "0 or more");
  }
  if (options.top_k < 0) {
    refuse("top_k", static_cast<double>(options.top_k), "0 or more");
  }
  if (options.context < 1) {
    refuse("context", static_cast<double>(options.context), "1 or more");
  }
}

std::int32_t choose(at::Tensor logits_V, const GenerateOptions& options, at::Generator& generator) {
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(logits_V.argmax().item<std::int64_t>());
  }
  const auto kept =
      options.top_k == 0 ? logits_V.size(0) : std::min(options.top_k, logits_V.size(0));
  const auto [likeliest, ids] = logits_V.topk(kept);
  const auto probabilities = at::softmax(likeliest / options.temperature, 0);
  const auto drawn = at::multinomial(probabilities, 1, false, generator);
  return static_cast<std::int32_t>(ids.index_select(0, drawn).item<std::int64_t>());
}

} // namespace

std::vector<std::int32_t> generate(
    const std::function<at::Tensor(const at::Tensor&)>& logits_of,
    const std::vector<std::int32_t>& prompt,
    const GenerateOptions& options,
    const std::function<void(const std::vector<std::int32_t>&)>& after_token) {
  check(prompt, options);
  const torch::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int64_t> ids(prompt.begin(), prompt.end());
  std::vector<std::int32_t> made;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto seen = std::min(ids.size(), static_cast<std::size_t>(options.context));
    const auto input = torch::from_blob(
        ids.data() + (ids.size() - seen), {1, static_cast<std::int64_t>(seen)}, at::kLong);
    const auto logits = logits_of(input);
    const auto next =
        choose(logits.select(0, 0).select(0, -1).to(at::kCPU, at::kFloat), options, generator);
    if (next == options.stop) {
      break;
    }
    ids.push_back(next);
    made.push_back(next);
    if (after_token) {
      after_token(made);
    }
  }
  return made;
}

} // namespace tessera::models
