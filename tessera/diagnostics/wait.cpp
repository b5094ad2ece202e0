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

// Who goes on to wait for another rank does not wait for this one any more.
Wait::~Wait() {
  if (shown_) {
    activity::awaits(-1);
  }
}

std::string Wait::in_vain(int rank, const std::function<std::string()>& what) {
  const Clock::time_point now = Clock::now();
  const auto waited = now - began_;
  if (waited < kSettled) {
    return "";
  }
  if (activity::has_ended_program(rank)) {
    return "whose program has ended";
  }
  if (lockstep_) {
    shown_ = true;
    activity::awaits(rank);
    const auto opposed = activity::opposed_wait(rank);
    if (!opposed || opposed->number != opposed_) {
      opposed_ = opposed ? opposed->number : 0;
      opposed_since_ = now;
    } else if (now - opposed_since_ >= kSettled) {
      return str(
          "whose script waits for this rank in ",
          opposed->text,
          ": neither will end. Calls in which ranks exchange something (a step, save, load, "
          "state_dict, optimizer.step) must be made by all ranks, in the same order");
    }
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
  return "";
}

} // namespace tessera::diagnostics
