#include "tessera/diagnostics/uncaught_error.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>

#include <unistd.h>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/diagnostics/crash_report.h"
#include "tessera/diagnostics/error_message.h"

namespace tessera::diagnostics {

namespace {

constexpr int kStatus = 1;
// A wrong configuration is wrong again when the job is started anew (docs/launch.md).
constexpr int kWrongConfigurationStatus = 2;
// mpirun takes a second to bring down the others, so a rank that waits for it stays silent.
constexpr std::chrono::seconds kPatience{3};
// Rank 0 may still be loading its libraries on a busy host.
constexpr std::chrono::seconds kRankZeroSpeaks{10};
// Where ranks hear of each other, MPI has started, and they find the error at about the same time.
constexpr std::chrono::seconds kRankZeroTells{4};

Reporter g_reporter;
RankZeroNews g_news;

/// Returns the text, with the type of the exception where a text like "map::at" explains little.
std::string described(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return message_of(error);
  } catch (const c10::Error&) {
    return message_of(error);
  } catch (const std::exception& e) {
    return str(c10::demangle(typeid(e).name()), ": ", message_of(error));
  } catch (...) {
    return message_of(error);
  }
}

bool is_reported(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ReportedConfigError&) {
    return true;
  } catch (...) {
    return false;
  }
}

int status_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ConfigError&) {
    return kWrongConfigurationStatus;
  } catch (...) {
    return kStatus;
  }
}

void write_all(const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const auto count = ::write(STDERR_FILENO, text.data() + written, text.size() - written);
    if (count <= 0) {
      return;
    }
    written += static_cast<std::size_t>(count);
  }
}

void report(const std::exception_ptr& error) {
  const std::string text =
      error == nullptr ? "std::terminate was called without an exception" : described(error);
  const auto origin = origin_of(text);
  const bool waits = origin ? *origin != g_reporter.rank : !g_reporter.on_first_node;
  if (!claim_failure_report(waits ? kPatience : std::chrono::seconds(0))) {
    return;
  }
  std::string message = "tessera: ";
  if (!text.starts_with("rank ")) { // most errors between ranks name theirs
    message += str("rank ", g_reporter.rank, " (process ", ::getpid(), "): ");
  }
  write_all(message + text + "\n");
  failure_reported();
}

/// Flushes what the script has printed, but does not block: another thread may hold
/// the lock forever.
void flush_stdout() {
  if (::ftrylockfile(stdout) == 0) {
    ::fflush_unlocked(stdout);
    ::funlockfile(stdout);
  }
}

[[noreturn]] void end_process() {
  // A second error, or a reader of stdout that has stopped, must not keep the process.
  std::signal(SIGALRM, SIG_DFL);
  ::alarm(8);
  const std::exception_ptr error = std::current_exception();
  // The message reports this end, so other ranks need not report a dead peer.
  activity::leave();
  if (error == nullptr || !is_reported(error)) {
    report(error);
  }
  flush_stdout();
  ::_exit(error == nullptr ? kStatus : status_of(error));
}

int rank_of_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) {
      return std::atoi(value);
    }
  }
  return 0;
}

} // namespace

Reporter Reporter::of_environment() {
  const int rank = rank_of_environment();
  return {rank, rank == 0};
}

void set_rank_zero_news(RankZeroNews news) {
  g_news = std::move(news);
}

bool speaks_for_all() {
  if (rank_of_environment() == 0) {
    if (g_news.tell) {
      g_news.tell();
    }
    return true;
  }
  if (g_news.heard) {
    return !g_news.heard(kRankZeroTells);
  }
  std::this_thread::sleep_for(kRankZeroSpeaks);
  return true;
}

void report_uncaught_errors(const Reporter& reporter) {
  g_reporter = reporter;
  const std::terminate_handler now = std::get_terminate();
#ifdef __GLIBCXX__
  const bool is_default = now == __gnu_cxx::__verbose_terminate_handler;
#else
  const bool is_default = true;
#endif
  if (is_default || now == std::abort) {
    std::set_terminate(end_process);
  }
}

} // namespace tessera::diagnostics
