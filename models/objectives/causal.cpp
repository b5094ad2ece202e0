#include <torch/torch.h>

#include "models/objectives/kinds.h"

namespace tessera::models {

namespace {

class Causal : public Objective {
 public:
  using Objective::Objective;

  Examples make(const at::Tensor& tokens, const std::vector<std::uint64_t>& /*keys*/)
      const override {
    const std::int64_t sequence = facts().window.stride;
    return {
        {tokens.narrow(1, 0, sequence).contiguous()}, {tokens.narrow(1, 1, sequence).contiguous()}};
  }
};

} // namespace

std::unique_ptr<Objective> causal_objective(const TokenTable& table, std::int64_t sequence) {
  ObjectiveFacts facts;
  facts.name = "next token";
  facts.vocabulary = table.tokens;
  // The last token is only a target; the next sample begins with it.
  facts.window = {sequence, sequence + 1};
  facts.targets = sequence;
  return std::make_unique<Causal>(std::move(facts));
}

} // namespace tessera::models
