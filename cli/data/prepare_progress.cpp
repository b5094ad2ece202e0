#include "cli/data/prepare_progress.h"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

namespace tessera::cli {

namespace {

constexpr auto kBetweenLines = std::chrono::seconds(30);

} // namespace

PrepareProgressLine::PrepareProgressLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

PrepareProgressLine::~PrepareProgressLine() {
  clear();
}

void PrepareProgressLine::show(const data::PrepareProgress& progress) {
  const std::string text = progress_text(progress);
  if (terminal_) {
    line_.show(text);
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ >= kBetweenLines) {
    last_ = now;
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

void PrepareProgressLine::clear() {
  line_.clear();
}

std::string progress_text(const data::PrepareProgress& progress) {
  char text[160];
  std::string made = progress.doing;
  if (progress.done_bytes > 0) {
    const double done = static_cast<double>(progress.done_bytes) / 1e6;
    // A file that grows while it is read must not be shown as more than all.
    const double total = std::max(static_cast<double>(progress.total_bytes) / 1e6, done);
    std::snprintf(text, sizeof(text), ": %.1f of %.1f MB", done, total);
    made += text;
  }
  if (progress.tokens > 0) {
    std::snprintf(
        text, sizeof(text), ", %.1f million tokens", static_cast<double>(progress.tokens) / 1e6);
    made += text;
  }
  return made;
}

} // namespace tessera::cli
