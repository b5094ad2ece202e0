#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "models/data/tokenizer_model.h"

namespace tessera::data {

/// The tokenizer that a tokenizer.json describes (README.md). Ids are those of the library that
/// writes such files, without the begin and the end that its post-processor adds. A special token
/// in the text becomes its id, as there; ids of special tokens become no text.
///
/// The end of a document is the special token with the first of these names that is there:
/// <|endoftext|>, <|end_of_text|>, </s>, <eos>, [SEP].
///
/// Throws: ConfigError that begins with `name`, with the key and its value, for what is no
/// tokenizer.json or is not implemented.
std::unique_ptr<TokenizerModel> make_json_tokenizer(std::string_view text, const std::string& name);

} // namespace tessera::data
