#include "cli/train/progress.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::cli {

namespace {

/// mpirun gives rank 0 a terminal of its own whatever its output goes to, so
/// under it only the launcher can tell.
bool on_terminal() {
  if (const char* said = std::getenv("TESSERA_TERMINAL")) {
    return std::string(said) == "1";
  }
  return std::getenv("OMPI_COMM_WORLD_RANK") == nullptr && ::isatty(STDOUT_FILENO) == 1;
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  char text[32];
  std::snprintf(
      text,
      sizeof(text),
      "%lld:%02lld",
      static_cast<long long>(whole / 60),
      static_cast<long long>(whole % 60));
  return text;
}

std::string figures(const report::StepRecord& record) {
  char text[200];
  int used = std::snprintf(
      text,
      sizeof(text),
      "loss %.4f  %.0f tokens/s  %.0f ms/step",
      record.loss,
      record.tokens_per_second,
      record.step_seconds * 1e3);
  if (record.bubble_share) {
    used += std::snprintf(
        text + used, sizeof(text) - used, "  bubble %.0f %%", *record.bubble_share * 100);
  }
  if (!record.memory_bytes.empty()) {
    const auto most = *std::max_element(record.memory_bytes.begin(), record.memory_bytes.end());
    std::snprintf(
        text + used,
        sizeof(text) - used,
        "  memory <= %.0f MiB/rank",
        static_cast<double>(most) / (1 << 20));
  }
  return text;
}

} // namespace

bool is_quiet() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* said = std::getenv("TESSERA_LOG");
  const std::string level = said == nullptr ? "" : said;
  return level == "warning" || level == "error" || level == "off";
}

Progress::Progress(std::int64_t first, std::int64_t total, std::int64_t every)
    : first_(first),
      total_(total),
      every_(every),
      terminal_(on_terminal()),
      ends_{std::chrono::steady_clock::now()} {}

void Progress::step(const report::StepRecord& record) {
  if (is_quiet()) {
    return;
  }
  const std::int64_t done = record.step;
  // Of the last steps, so that a machine that has become slower or faster is seen soon.
  constexpr std::size_t kLooksBack = 20;
  ends_.push_back(std::chrono::steady_clock::now());
  if (ends_.size() > kLooksBack + 1) {
    ends_.pop_front();
  }
  const double elapsed = std::chrono::duration<double>(ends_.back() - ends_.front()).count();
  const double left =
      elapsed / static_cast<double>(ends_.size() - 1) * static_cast<double>(total_ - done);
  const std::string text =
      str(done, "/", total_, "  ", figures(record), "  ", duration(left), " left");
  if (terminal_) {
    line_.show(progress_bar(done, total_, 24) + " " + text);
  } else if (done % every_ == 0 || done == total_ || done == first_ + 1) {
    std::printf("step %s\n", text.c_str());
    std::fflush(stdout);
  }
}

void Progress::note(const std::string& text) {
  if (is_quiet() && text.rfind("warning: ", 0) != 0) {
    return;
  }
  line_.clear();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Progress::finish() {
  line_.keep();
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  std::int64_t resident = 0;
  file >> pages >> resident;
  return file ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

} // namespace tessera::cli
