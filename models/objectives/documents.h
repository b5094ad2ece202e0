#pragma once

#include <string>
#include <vector>

#include "models/data/document_index.h"
#include "models/presets.h"

namespace tessera::models {

/// What the model's inputs say about the documents in its samples; by default nothing.
struct Documents {
  /// The index of each token file. With them a token attends to tokens of its own document alone.
  std::vector<data::DocumentIndex> indexes;
  /// Positions count from 0 in every document.
  bool reset_positions = false;
};

/// Throws: ConfigError for a model whose inputs cannot say where documents begin, which is every
/// model that does not continue a text. `asked_by` names the key or option. Not collective.
void check_takes_documents(
    const Options& options,
    const std::string& family,
    const std::string& asked_by);

} // namespace tessera::models
