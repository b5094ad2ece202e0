#include "models/data/json_tokenizer/decoder.h"

#include <array>
#include <utility>

#include "models/data/json_tokenizer/byte_level.h"
#include "models/data/json_tokenizer/fields.h"
#include "models/data/utf8.h"

namespace tessera::data {

namespace {

// What the library of these files does, in its order.
constexpr std::array<std::pair<const char*, const char*>, 11> kCleanups{
    {{" .", "."},
     {" ?", "?"},
     {" !", "!"},
     {" ,", ","},
     {" ' ", "'"},
     {" n't", "n't"},
     {" 'm", "'m"},
     {" do not", " don't"},
     {" 's", "'s"},
     {" 've", "'ve"},
     {" 're", "'re"}}};

std::string cleaned(std::string text) {
  for (const auto& [from, to] : kCleanups) {
    const std::string_view wanted = from;
    const std::string_view made = to;
    for (auto at = text.find(wanted); at != std::string::npos;
         at = text.find(wanted, at + made.size())) {
      text.replace(at, wanted.size(), made);
    }
  }
  return text;
}

} // namespace

TokenDecoder::TokenDecoder(const OrderedJson& json, const std::string& place) {
  if (json.is_null()) {
    return;
  }
  Fields fields(json, place);
  const std::string type = fields.text("type");
  if (type == "ByteLevel") {
    kind_ = Kind::kByteLevel;
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      fields.ignore(key); // of the pre_tokenizer of this name
    }
  } else if (type == "WordPiece") {
    kind_ = Kind::kWordPiece;
    prefix_ = fields.text("prefix", "##");
    cleanup_ = fields.flag("cleanup", true);
  } else {
    fields.refuse("type", "ByteLevel, WordPiece");
  }
  fields.done();
}

std::string TokenDecoder::text_of(const std::vector<std::string>& tokens) const {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    if (kind_ == Kind::kByteLevel) {
      // An added token is spelled as it is.
      text += bytes_spelled(token).value_or(token);
      continue;
    }
    std::string piece = i == 0 ? token : " " + token;
    if (kind_ == Kind::kWordPiece) {
      if (i > 0 && !prefix_.empty() && token.starts_with(prefix_)) {
        piece = token.substr(prefix_.size());
      }
      piece = cleanup_ ? cleaned(std::move(piece)) : piece;
    }
    text += piece;
  }
  return with_replaced_invalid(text);
}

} // namespace tessera::data
