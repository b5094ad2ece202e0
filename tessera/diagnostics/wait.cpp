#include "tessera/diagnostics/wait.h"

#include <atomic>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/diagnostics/activity.h"

namespace tessera::diagnostics {

namespace {

constexpr std::chrono::seconds kNoticeAfter{30};
constexpr std::chrono::minutes kBetweenNotices{5};

// At most one notice of a process in so long: some jobs wait for a slow rank in every step.
bool may_notice(std::chrono::steady_clock::time_point now) {
  static std::atomic<std::int64_t> next{0}; // in ticks of the clock
  const std::int64_t ticks = now.time_since_epoch().count();
  std::int64_t due = next.load();
  const auto pause =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(kBetweenNotices);
  return ticks >= due && next.compare_exchange_strong(due, ticks + pause.count());
}

} // namespace

bool Wait::is_in_vain(int rank, const std::function<std::string()>& what) {
  const Clock::time_point now = Clock::now();
  const auto waited = now - began_;
  if (waited < kSettled) {
    return false;
  }
  if (activity::has_ended_program(rank)) {
    return true;
  }
  if (!told_ && waited >= kNoticeAfter) {
    told_ = true;
    const std::string theirs = activity::of_rank(rank);
    if (!theirs.empty() && may_notice(now)) {
      log::warning(
          str(what(),
              ": this rank has waited ",
              std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
              " s for rank ",
              rank,
              "; this rank: ",
              activity::of_self(),
              "; rank ",
              rank,
              ": ",
              theirs,
              ". It goes on to wait. Calls in which ranks exchange something (a step, save, load, "
              "state_dict, optimizer.step) must be made by all ranks"));
    }
  }
  return false;
}

} // namespace tessera::diagnostics
