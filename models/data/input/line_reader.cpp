#include "models/data/input/line_reader.h"

#include <algorithm>

#include "tessera/base/error.h"

#include "models/data/utf8.h"

namespace tessera::data {

namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 16;

// Where a piece ends that is to have about `size` bytes: not inside a character.
std::size_t end_of_piece(std::string_view text, std::size_t size) {
  std::size_t end = size;
  while (end > size - 4 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return end;
}

} // namespace

LineReader::LineReader(const std::string& path, std::size_t most_bytes)
    : source_(path), most_bytes_(std::max<std::size_t>(most_bytes, 16)) {}

std::string LineReader::place() const {
  return str(source_.path(), ", line ", number_);
}

void LineReader::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t held = buffer_.size();
  buffer_.resize(held + kReadBytes);
  const std::size_t got = source_.read(buffer_.data() + held, kReadBytes);
  buffer_.resize(held + got);
  ended_ = got < kReadBytes;
}

bool LineReader::next(std::string_view& line) {
  number_ += line_ended_ ? 1 : 0;
  line_ended_ = false;
  std::size_t searched = begin_;
  for (;;) {
    const std::size_t newline = buffer_.find('\n', searched);
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    if (newline != std::string::npos && newline + 1 - begin_ <= most_bytes_) {
      line = rest.substr(0, newline + 1 - begin_);
      line_ended_ = true;
    } else if (rest.size() > most_bytes_) {
      line = rest.substr(0, end_of_piece(rest, most_bytes_));
    } else if (ended_) {
      line = rest;
    } else {
      const std::size_t held = rest.size();
      fill();
      searched = held;
      continue;
    }
    begin_ += line.size();
    check(line);
    return !line.empty();
  }
}

void LineReader::check(std::string_view line) const {
  if (const auto nul = line.find('\0'); nul != std::string_view::npos) {
    throw ConfigError(
        str(place(), " has a NUL byte (byte ", nul + 1, "), expected a text file in UTF-8"));
  }
  if (const auto wrong = first_invalid_utf8(line); wrong != std::string_view::npos) {
    throw ConfigError(
        str(place(),
            " is not UTF-8 (byte ",
            wrong + 1,
            "), expected a text file in UTF-8; convert it, for example with iconv"));
  }
}

} // namespace tessera::data
