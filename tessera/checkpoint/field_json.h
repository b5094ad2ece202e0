#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tessera/state/fields.h"

namespace tessera::checkpoint {

using state::Fields;

// This header is private to this folder's sources.

/// Converts values without tensors to JSON and back: numbers, booleans and strings as they are,
/// lists as lists, tuples as {"tuple": [...]}. Doubles keep every bit.
/// Throws: CheckpointError naming `what` and the field for anything else.
nlohmann::json fields_to_json(const Fields& fields, const std::string& what);
Fields fields_from_json(const nlohmann::json& json, const std::string& what);

} // namespace tessera::checkpoint
