#include "cli/generate/text_stream.h"

#include <cerrno>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera::cli {

namespace {

/// Length of the text without a last character that may still change: bytes of
/// one that is not whole, or the marks (U+FFFD) that stand for such bytes.
std::size_t settled(const std::string& text) {
  const std::string mark = "\xEF\xBF\xBD";
  std::size_t end = text.size();
  while (end >= mark.size() && text.compare(end - mark.size(), mark.size(), mark) == 0) {
    end -= mark.size();
  }
  std::size_t lead = end;
  while (lead > 0 && end - lead < 3 &&
         (static_cast<unsigned char>(text[lead - 1]) & 0xC0U) == 0x80U) {
    --lead;
  }
  if (lead == 0) {
    return end;
  }
  const auto first = static_cast<unsigned char>(text[lead - 1]);
  const std::size_t wanted = first >= 0xF0U ? 4 : first >= 0xE0U ? 3 : first >= 0xC0U ? 2 : 1;
  return wanted > 1 && end - (lead - 1) < wanted ? lead - 1 : end;
}

} // namespace

void TextStream::write(const std::string& bytes) {
  errno = 0;
  if (std::fwrite(bytes.data(), 1, bytes.size(), out_) != bytes.size() || std::fflush(out_) != 0) {
    const int error = errno;
    throw Error(str(name_, " cannot be written: ", std::generic_category().message(error)));
  }
}

void TextStream::show(const std::string& text) {
  const std::size_t end = settled(text);
  if (end > shown_.size() && text.compare(0, shown_.size(), shown_) == 0) {
    write(text.substr(shown_.size(), end - shown_.size()));
    shown_ = text.substr(0, end);
  }
}

void TextStream::finish(const std::string& text, const std::string& ending) {
  const bool grown = text.compare(0, shown_.size(), shown_) == 0;
  // A decoder may change what it had said before; then the whole stands on a
  // line of its own.
  write((grown ? text.substr(shown_.size()) : "\n" + text) + ending);
  shown_ = text;
}

} // namespace tessera::cli
