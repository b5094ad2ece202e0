#include "models/objectives/make_objective.h"

#include "tessera/base/error.h"

#include "models/objectives/kinds.h"

namespace tessera::models {

namespace {

struct Chooser {
  const TokenTable& table;
  std::int64_t sequence;

  std::unique_ptr<Objective> operator()(const GptOptions&) const {
    return causal_objective(table, sequence);
  }
  std::unique_ptr<Objective> operator()(const DecoderOptions&) const {
    return causal_objective(table, sequence);
  }
  std::unique_ptr<Objective> operator()(const BertOptions& options) const {
    return masked_objective(options, table, sequence);
  }
  std::unique_ptr<Objective> operator()(const T5Options& options) const {
    return span_corruption_objective(options, table, sequence);
  }
  std::unique_ptr<Objective> operator()(const NcfOptions&) const {
    return interactions_objective(table, sequence);
  }
};

} // namespace

std::unique_ptr<Objective>
make_objective(const Options& options, const TokenTable& table, std::int64_t sequence) {
  if (table.interactions && !std::holds_alternative<NcfOptions>(options)) {
    throw ConfigError(
        "the data are pairs of users and items, from which a model of texts learns nothing; name a "
        "folder of texts, or a model of the family ncf");
  }
  return std::visit(Chooser{table, sequence}, options);
}

} // namespace tessera::models
