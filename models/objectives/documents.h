#pragma once

#include <string>
#include <vector>

#include "models/data/document_index.h"
#include "models/presets.h"

namespace tessera::models {

/// What a model is told of the documents that lie in its samples; as it is, nothing.
struct Documents {
  /// Of each token file. With them a token attends to those of its own document alone.
  std::vector<data::DocumentIndex> indexes;
  /// Positions count from 0 in every document.
  bool reset_positions = false;
};

/// Throws: ConfigError for a model that is told nothing of documents: one that does not continue a
/// text. `asked_by` names the key or option. Not collective.
void check_takes_documents(
    const Options& options,
    const std::string& family,
    const std::string& asked_by);

} // namespace tessera::models
