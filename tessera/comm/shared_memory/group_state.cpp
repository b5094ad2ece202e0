#include "tessera/comm/shared_memory/group_state.h"

#include "tessera/base/error.h"

namespace tessera::comm {

namespace {

template <std::size_t N>
void copy_text(std::array<char, N>& into, std::string_view text) {
  into[text.copy(into.data(), N - 1)] = '\0';
}

} // namespace

void RankFailures::add(std::uint32_t operations, std::string_view text) {
  const std::uint32_t number = count.load();
  if (number == 0) {
    copy_text(why, text);
  }
  started[number % kKept].store(operations);
  count.store(number + 1);
}

bool RankFailures::misses(std::uint32_t sequence, std::uint32_t failures) const {
  const std::uint32_t number = count.load(std::memory_order_acquire);
  return number > failures &&
         (number - failures > kKept ||
          !ipc::Counter::is_at_or_after(started[failures % kKept].load(), sequence));
}

void GroupState::fail(int rank, std::string_view text) {
  std::uint32_t nobody = 0;
  const auto mine = static_cast<std::uint32_t>(rank) + 1;
  if (failing.compare_exchange_strong(nobody, mine)) {
    copy_text(reason, text);
    failed.store(mine, std::memory_order_release);
  }
}

int GroupState::break_by(int origin) {
  std::uint32_t first = 0;
  const bool is_first =
      broken.compare_exchange_strong(first, static_cast<std::uint32_t>(origin) + 1);
  return is_first ? origin : static_cast<int>(first) - 1;
}

void GroupState::throw_failed(const GroupInfo& info, int rank, const std::string& what) const {
  throw CommError(str(
      what, ": rank ", info.ranks[static_cast<std::size_t>(rank)], " has failed: ", reason.data()));
}

} // namespace tessera::comm
