#pragma once

#include <string>

#include "tessera/cost/cluster.h"
#include "tessera/cost/described_model.h"

namespace tessera::planner {

/// Reads a described model or cluster from its JSON form (see `schema`).
/// `origin` begins every message. Any bytes are safe; unknown, repeated and
/// missing fields, wrong types and impossible values are errors.
/// Throws: ConfigError naming the field, what was found and what to write.
cost::DescribedModel model_from_json(const std::string& text, const std::string& origin);
cost::Cluster cluster_from_json(const std::string& text, const std::string& origin);

/// Read the same from a file, whose path is the origin.
/// Throws: ConfigError also when the file cannot be read.
cost::DescribedModel load_model(const std::string& path);
cost::Cluster load_cluster(const std::string& path);

/// Returns the JSON that cluster_from_json reads back to an equal cluster.
std::string cluster_to_json(const cost::Cluster& cluster);

/// Returns the JSON schema (draft 2020-12) of both forms: a file is one of
/// "$defs".model and "$defs".cluster.
std::string schema();

} // namespace tessera::planner
