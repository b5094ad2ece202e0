#include "cli/redrawn_line.h"

namespace tessera::cli {

namespace {

constexpr const char* kEraseLine = "\r\033[K";

} // namespace

void RedrawnLine::show(const std::string& text) {
  std::fprintf(stream_, "%s%s", drawn_ ? kEraseLine : "", text.c_str());
  std::fflush(stream_);
  drawn_ = true;
}

void RedrawnLine::clear() {
  if (drawn_) {
    std::fputs(kEraseLine, stream_);
    std::fflush(stream_);
    drawn_ = false;
  }
}

void RedrawnLine::keep() {
  if (drawn_) {
    std::fputs("\n", stream_);
    drawn_ = false;
  }
}

std::string progress_bar(std::int64_t done, std::int64_t total, int width) {
  const std::int64_t filled = total > 0 ? width * done / total : 0;
  return "[" + std::string(static_cast<std::size_t>(filled), '#') +
         std::string(static_cast<std::size_t>(width - filled), '.') + "]";
}

} // namespace tessera::cli
