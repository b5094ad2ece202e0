#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/data/sampler.h"
#include "models/objectives/token_table.h"
#include "models/registry.h"

namespace tessera::models {

/// Inputs of a model and targets of its loss, as AnyModel::training_loss takes them; one row of
/// each tensor is a sample.
struct Examples {
  Tensors inputs;
  Tensors targets;
};

/// Sizes of an objective with a model's sequence, and what it needs of the model.
struct ObjectiveFacts {
  std::string name; // "next token", "masked tokens", "span corruption" or "interactions"
  std::int64_t vocabulary = 0; // ids that the model must have, those of the data among them
  data::Window window; // the tokens of the text that make one sample
  std::int64_t decoder_positions = 0; // 0 without a decoder
  std::int64_t targets = 0; // that count in the loss of one sample
  /// Options of the model that follow from the tokens. It is empty where the tokenizer does not
  /// determine them; the user must give them then.
  std::map<std::string, std::optional<std::int64_t>> options;
  /// Says to the user which ids were reserved behind those of the data.
  std::vector<std::string> notes;
};

/// What a model learns from a text, or from interactions.
///
/// An objective knows no files and no ranks. Every sample has the same number of targets, so a mean
/// over any division of a batch into equal parts is the mean over the batch.
/// Threads: any thread. Not collective.
class Objective {
 public:
  explicit Objective(ObjectiveFacts facts) : facts_(std::move(facts)) {}
  virtual ~Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;

  const ObjectiveFacts& facts() const {
    return facts_;
  }

  /// Makes one sample of each row of tokens. Shapes: tokens_BW of facts().window.length ids (int64,
  /// processor); `keys` has B entries, from which all that is drawn follows (draws.h).
  virtual Examples make(const at::Tensor& tokens, const std::vector<std::uint64_t>& keys) const = 0;

 private:
  ObjectiveFacts facts_;
};

} // namespace tessera::models
