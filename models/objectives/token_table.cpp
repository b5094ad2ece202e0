#include "models/objectives/token_table.h"

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"

#include "models/data/data_folder.h"

namespace tessera::models {

namespace {

/// One message in protobuf's encoding, field by field.
/// Source: protobuf.dev, "Encoding".
class Message {
 public:
  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0; // of a varint
    std::string_view bytes; // of a field with a length
  };
  struct Malformed {};

  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  bool done() const {
    return bytes_.empty();
  }
  /// Throws: Malformed.
  Field next() {
    const std::uint64_t tag = varint();
    Field field;
    field.number = tag >> 3U;
    switch (tag & 7U) {
      case 0:
        field.value = varint();
        return field;
      case 1:
        take(8);
        return field;
      case 2:
        field.bytes = take(varint());
        return field;
      case 5:
        take(4);
        return field;
      default:
        throw Malformed{};
    }
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80U) {
        return value;
      }
    }
    throw Malformed{};
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size()) {
      throw Malformed{};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

// Numbers of fields and types in sentencepiece_model.proto.
constexpr std::uint64_t kPieces = 1;
constexpr std::uint64_t kPieceText = 1;
constexpr std::uint64_t kPieceType = 3;
enum PieceType : std::uint64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5
};

void add_piece(std::string_view piece, TokenTable& table) {
  std::string text;
  std::uint64_t type = kNormal;
  for (Message message(piece); !message.done();) {
    const Message::Field field = message.next();
    if (field.number == kPieceText) {
      text = field.bytes;
    } else if (field.number == kPieceType) {
      type = field.value;
    }
  }
  const auto id = static_cast<std::int64_t>(table.special.size());
  if (type == kUnknown || type == kControl || type == kUserDefined) {
    table.named.emplace(text, id);
  }
  table.special.push_back(type == kUnknown || type == kControl || type == kUnused);
}

} // namespace

std::optional<std::int64_t> TokenTable::find(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    const auto found = named.find(name);
    if (found != named.end()) {
      return found->second;
    }
  }
  return std::nullopt;
}

TokenTable
token_table_of_pieces(std::string_view model, std::int64_t tokens, const std::string& name) {
  TokenTable table;
  table.tokens = tokens;
  try {
    for (Message message(model); !message.done();) {
      const Message::Field field = message.next();
      if (field.number == kPieces) {
        add_piece(field.bytes, table);
      }
    }
  } catch (const Message::Malformed&) {
    throw ConfigError(str(name, " is no SentencePiece model, or is damaged"));
  }
  if (static_cast<std::int64_t>(table.special.size()) != tokens) {
    throw ConfigError(
        str(name,
            " has ",
            table.special.size(),
            " pieces, the token files beside it are of ",
            tokens,
            " tokens: they do not belong together; prepare the data anew"));
  }
  return table;
}

TokenTable
token_table_of_json(const std::string& text, std::int64_t tokens, const std::string& name) {
  const OrderedJson file = parse_json(text, name);
  TokenTable table;
  table.tokens = tokens;
  table.special.assign(static_cast<std::size_t>(tokens), false);
  const auto added = file.find("added_tokens");
  if (added == file.end() || !added->is_array()) {
    return table;
  }
  for (const OrderedJson& token : *added) {
    if (!token.is_object() || !token.contains("id") || !token["id"].is_number_integer() ||
        !token.contains("content") || !token["content"].is_string()) {
      throw ConfigError(str(name, ": an entry of \"added_tokens\" has no id or no content"));
    }
    const auto id = token["id"].get<std::int64_t>();
    if (id < 0 || id >= tokens) {
      throw ConfigError(
          str(name,
              ": ",
              token["content"].get<std::string>(),
              " is id ",
              id,
              ", the token files beside it are of ",
              tokens,
              " tokens: they do not belong together; prepare the data anew"));
    }
    table.named.emplace(token["content"].get<std::string>(), id);
    table.special[static_cast<std::size_t>(id)] = token.value("special", false);
  }
  return table;
}

TokenTable read_token_table(const std::string& folder, std::int64_t tokens) {
  const std::string path = data::tokenizer_path(folder);
  if (!std::filesystem::exists(path)) {
    TokenTable table;
    table.tokens = tokens;
    return table;
  }
  const std::string bytes = read_file(path);
  if (path.ends_with(data::kInteractionsFile)) {
    TokenTable table;
    table.tokens = tokens;
    table.interactions = data::interactions_from_json(bytes, path);
    if (std::max(table.interactions->users, table.interactions->items) != tokens) {
      throw ConfigError(
          str(path,
              " has ",
              table.interactions->users,
              " users and ",
              table.interactions->items,
              " items, the token files beside it are of ",
              tokens,
              " ids: they do not belong together; prepare the data anew"));
    }
    return table;
  }
  return bytes.find_first_not_of(" \t\r\n") < bytes.size() &&
                 bytes[bytes.find_first_not_of(" \t\r\n")] == '{'
             ? token_table_of_json(bytes, tokens, path)
             : token_table_of_pieces(bytes, tokens, path);
}

} // namespace tessera::models
