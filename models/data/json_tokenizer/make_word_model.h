#pragma once

#include <memory>
#include <string>

#include "models/data/json_tokenizer/word_model.h"

namespace tessera::data {

/// Makes the model of a tokenizer.json, whose words are bytes with `byte_level`, else texts.
/// Throws: ConfigError that begins with `place` for what is not implemented.
std::unique_ptr<WordModel>
make_word_model(const OrderedJson& json, const std::string& place, bool byte_level);

} // namespace tessera::data
