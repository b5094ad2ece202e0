#include "models/data/input/token_source.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

namespace tessera::data {

namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::size_t kBeforeNpyText = 12;

/// The value behind a key of the dictionary in a NumPy header, up to the comma behind it that is
/// not inside brackets.
std::optional<std::string_view> value_of(std::string_view text, std::string_view key) {
  const auto at = text.find(str("'", key, "'"));
  if (at == std::string_view::npos) {
    return {};
  }
  text.remove_prefix(at + key.size() + 2);
  const auto begin = text.find_first_not_of(": ");
  if (begin == std::string_view::npos) {
    return {};
  }
  text.remove_prefix(begin);
  std::size_t end = 0;
  for (int depth = 0; end < text.size(); ++end) {
    depth += text[end] == '(' || text[end] == '[' ? 1 : 0;
    if (depth == 0 && (text[end] == ',' || text[end] == '}')) {
      break;
    }
    depth -= text[end] == ')' || text[end] == ']' ? 1 : 0;
  }
  text = text.substr(0, end);
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

// "'<u2'"
void read_type(std::string_view value, const std::string& path, TokenLayout& layout) {
  const bool quoted = value.size() == 5 && value.front() == '\'' && value.back() == '\'';
  const std::string_view type = quoted ? value.substr(1, 3) : "";
  const bool known = quoted && std::string_view("<>|").find(type[0]) != std::string_view::npos &&
                     (type[1] == 'u' || type[1] == 'i') &&
                     std::string_view("1248").find(type[2]) != std::string_view::npos &&
                     (type[0] != '|' || type[2] == '1');
  if (!known) {
    throw ConfigError(
        str(path,
            " has the type ",
            quoted_briefly(value),
            ", expected whole numbers of 1, 2, 4 or 8 bytes, as '<u2'; write "
            "array.astype('uint32')"));
  }
  layout.big_endian = type[0] == '>';
  layout.is_signed = type[1] == 'i';
  layout.token_bytes = static_cast<std::uint32_t>(type[2] - '0');
}

// "(123,)"
std::optional<std::uint64_t> only_dimension(std::string_view value) {
  std::uint64_t count = 0;
  if (value.size() < 4 || value.front() != '(' || value.back() != ')') {
    return {};
  }
  value = value.substr(1, value.size() - 2);
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  const std::string_view rest = value.substr(static_cast<std::size_t>(end - value.data()));
  return error == std::errc() && (rest == "," || rest == ", ") ? std::optional(count)
                                                               : std::nullopt;
}

std::int64_t number_at(const char* at, const TokenLayout& layout) {
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < layout.token_bytes; ++i) {
    const std::uint32_t from = layout.big_endian ? i : layout.token_bytes - 1 - i;
    bits = bits << 8U | static_cast<unsigned char>(at[from]);
  }
  const std::uint32_t above = 64 - 8 * layout.token_bytes;
  // The shift to the left and back copies the sign; an unsigned one beyond the signed range becomes
  // negative, which no vocabulary has.
  return layout.is_signed ? static_cast<std::int64_t>(bits << above) >> above
                          : static_cast<std::int64_t>(bits);
}

} // namespace

TokenLayout
npy_layout(const std::string& start, std::uint64_t size_bytes, const std::string& path) {
  if (start.size() < kBeforeNpyText || !start.starts_with(kNpyMagic)) {
    throw ConfigError(str(path, " is no NumPy file: it does not begin with \\x93NUMPY"));
  }
  const auto version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3) {
    throw ConfigError(
        str(path, " is a NumPy file of version ", int{version}, "; this program reads 1 to 3"));
  }
  const std::uint32_t length_bytes = version == 1 ? 2 : 4;
  const auto length =
      static_cast<std::uint64_t>(number_at(start.data() + 8, {.token_bytes = length_bytes}));
  TokenLayout layout;
  layout.offset_bytes = 8 + length_bytes + length;
  if (layout.offset_bytes > start.size()) {
    throw ConfigError(str(path, " is truncated, or its header is too long: ", length, " bytes"));
  }
  const std::string_view text = std::string_view(start).substr(8 + length_bytes, length);
  const auto type = value_of(text, "descr");
  const auto shape = value_of(text, "shape");
  if (!type || !shape) {
    throw ConfigError(str(path, " has no 'descr' or no 'shape' in its header"));
  }
  read_type(*type, path, layout);
  const auto count = only_dimension(*shape);
  if (!count) {
    throw ConfigError(
        str(path,
            " has the shape ",
            quoted_briefly(*shape),
            ", expected one dimension; write array.reshape(-1)"));
  }
  layout.count = *count;
  const std::uint64_t there = size_bytes - layout.offset_bytes;
  if (there % layout.token_bytes != 0 || there / layout.token_bytes != layout.count) {
    throw ConfigError(
        str(path,
            there / layout.token_bytes < layout.count ? " is truncated" : " is too long",
            ": its shape says ",
            layout.count,
            " numbers of ",
            layout.token_bytes,
            " bytes, there are ",
            there,
            " bytes"));
  }
  return layout;
}

TokenSource::TokenSource(const std::string& path, int raw_bytes, std::int64_t vocab_size)
    : path_(path), file_(path, std::ios::binary), vocab_size_(vocab_size) {
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (!file_ || failed) {
    throw ConfigError(str("cannot read ", path, ": ", failed ? failed.message() : "not readable"));
  }
  if (path.ends_with(".npy")) {
    std::string start(std::min<std::uint64_t>(size, kMostNpyHeader), '\0');
    file_.read(start.data(), static_cast<std::streamsize>(start.size()));
    layout_ = npy_layout(start, size, path);
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(layout_.offset_bytes));
  } else {
    if (raw_bytes != 2 && raw_bytes != 4) {
      throw ConfigError(str(
          path, " is not called .npy; say what its numbers are: --token-type uint16 or uint32"));
    }
    layout_.token_bytes = static_cast<std::uint32_t>(raw_bytes);
    layout_.count = size / layout_.token_bytes;
    if (size % layout_.token_bytes != 0) {
      throw ConfigError(
          str(path, " has ", size, " bytes, no multiple of the ", raw_bytes, " of a number"));
    }
  }
  if (layout_.count == 0) {
    throw ConfigError(str(path, " has no token"));
  }
}

std::vector<std::int32_t> TokenSource::next(std::size_t most) {
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(most, layout_.count - read_));
  std::string bytes(count * layout_.token_bytes, '\0');
  if (!file_.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    throw ConfigError(str("cannot read ", path_, " at token ", read_));
  }
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t token = number_at(bytes.data() + i * layout_.token_bytes, layout_);
    if (token < 0 || token >= vocab_size_) {
      throw ConfigError(
          str(path_,
              ": token ",
              read_ + i,
              " (from 0) is ",
              token,
              ", the tokenizer has the ids 0 to ",
              vocab_size_ - 1));
    }
    tokens[i] = static_cast<std::int32_t>(token);
  }
  read_ += count;
  return tokens;
}

std::uint64_t TokenSource::position_bytes() const {
  return layout_.offset_bytes + read_ * layout_.token_bytes;
}

} // namespace tessera::data
