#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tessera/checkpoint/optimizer_state.h"

namespace tessera::checkpoint {

// Private to this folder's sources.

/// The JSON form of values without tensors: numbers, booleans and strings as
/// they are, lists of them as lists, tuples as {"tuple": [...]}. Doubles come
/// back bit for bit.
/// Throws: CheckpointError naming `what` and the field for anything else.
nlohmann::json fields_to_json(const Fields& fields, const std::string& what);
Fields fields_from_json(const nlohmann::json& json, const std::string& what);

/// Equal values, tensors excluded.
bool same_fields(const Fields& a, const Fields& b);

} // namespace tessera::checkpoint
