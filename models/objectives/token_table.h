#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/interactions.h"

/// Reads tokenizer files for the pieces that they name. A SentencePiece model is read here by a few
/// lines of protobuf's encoding and not by the library: Debian's libsentencepiece exports a
/// protobuf of its own, with which a process that has libtorch crashes before `main`. The library
/// is therefore only in the program tessera-tokenizer (docs/gotchas.md), whose answers are token
/// ids; objectives need the types of the pieces.
namespace tessera::models {

/// What is known of the token ids of a data folder.
struct TokenTable {
  std::int64_t tokens = 0; // of the token files: every id is below it
  /// Whether an id is a mark and no part of a text: begin and end, unknown, unused. Empty where no
  /// tokenizer is known.
  std::vector<bool> special;
  /// Ids of marks and of symbols that the tokenizer's maker named, such as "<s>" and "[MASK]".
  std::map<std::string, std::int64_t> named;
  /// Set for a folder of interactions, whose ids are users and items alternately.
  std::optional<data::InteractionSizes> interactions;

  /// Returns the id of the first of these names that has one.
  std::optional<std::int64_t> find(std::initializer_list<const char*> names) const;
  bool is_special(std::int64_t id) const {
    return id < static_cast<std::int64_t>(special.size()) && special[static_cast<std::size_t>(id)];
  }
};

/// Reads the ids of a SentencePiece model from its bytes. Messages call it `name`.
/// Throws: ConfigError when they are no such model, or have another number of pieces than `tokens`.
TokenTable
token_table_of_pieces(std::string_view model, std::int64_t tokens, const std::string& name);

/// Reads the ids of a tokenizer.json of Hugging Face from its text: those of "added_tokens".
/// Throws: ConfigError for another form, or an id that `tokens` tokens do not have.
TokenTable
token_table_of_json(const std::string& text, std::int64_t tokens, const std::string& name);

/// Returns the table of a data folder whose files have `tokens` ids. If it has no tokenizer, the
/// table has no marks. Throws: ConfigError as token_table_of_pieces, and for interactions of other
/// sizes.
TokenTable read_token_table(const std::string& folder, std::int64_t tokens);

} // namespace tessera::models
