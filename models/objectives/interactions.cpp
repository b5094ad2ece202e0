#include <ATen/ATen.h>

#include "tessera/base/error.h"

#include "models/objectives/draws.h"
#include "models/objectives/kinds.h"

namespace tessera::models {

namespace {

/// Any item but the one that the user interacted with.
std::int64_t other_item(std::int64_t item, std::int64_t items, Draws& draws) {
  const std::int64_t drawn = draws.below(items - 1);
  return drawn < item ? drawn : drawn + 1;
}

class Interactions : public Objective {
 public:
  Interactions(ObjectiveFacts facts, std::int64_t items)
      : Objective(std::move(facts)), items_(items) {}

  Examples make(const at::Tensor& tokens, const std::vector<std::uint64_t>& keys) const override {
    const std::int64_t pairs = facts().targets;
    const at::Tensor users = tokens.select(1, 0).unsqueeze(1).expand({-1, pairs}).contiguous();
    const at::Tensor items = at::empty_like(users);
    const at::Tensor targets = at::zeros(users.sizes(), at::kFloat);
    auto item = items.accessor<std::int64_t, 2>();
    for (std::int64_t row = 0; row < tokens.size(0); ++row) {
      item[row][0] = tokens[row][1].item<std::int64_t>();
      Draws draws(keys.at(static_cast<std::size_t>(row)));
      for (std::int64_t pair = 1; pair < pairs; ++pair) {
        item[row][pair] = other_item(item[row][0], items_, draws);
      }
    }
    targets.select(1, 0).fill_(1);
    return {{users, items}, {targets}};
  }

 private:
  std::int64_t items_;
};

} // namespace

std::unique_ptr<Objective> interactions_objective(const TokenTable& table, std::int64_t sequence) {
  if (!table.interactions) {
    throw ConfigError(
        "a model of the family ncf learns from pairs of users and items, and the data are texts; "
        "name a folder that `tessera data interactions` wrote");
  }
  if (sequence < 2) {
    throw ConfigError(
        str("a sample of ",
            sequence,
            " pairs has none that is drawn beside the one that was seen; write a data.sequence of "
            "2 or more"));
  }
  ObjectiveFacts facts;
  facts.name = "interactions";
  facts.window = {2, 2};
  facts.targets = sequence;
  facts.options["users"] = table.interactions->users;
  facts.options["items"] = table.interactions->items;
  return std::make_unique<Interactions>(std::move(facts), table.interactions->items);
}

} // namespace tessera::models
