#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "models/data/tokenizer_model.h"

namespace tessera::data {

/// A SentencePiece model, which runs in a process of its own (the program tessera-tokenizer,
/// looked for beside this program, in the build folder, in PATH): Debian's library exports the
/// protobuf inside it, which cannot share a process with libtorch's.
/// Throws: ConfigError that begins with `name` when the bytes are none.
std::unique_ptr<TokenizerModel> make_sentencepiece_model(
    std::string_view bytes,
    const std::string& name);

/// Trains byte-pair encoding on the lines of a text; the same text gives the
/// same model. Returns the bytes of a SentencePiece model file.
/// Throws: ConfigError when the text is too small for `vocab_size`.
std::string train_tokenizer(std::string_view text, std::int64_t vocab_size);

} // namespace tessera::data
