#include "tessera/sharding/live_table.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ipc/counter.h"
#include "tessera/ipc/mutex.h"

namespace tessera::sharding {

namespace {

constexpr std::size_t kPage = 4096;

} // namespace

struct LiveTable::Shared {
  ipc::Mutex mutex; // of all but `changes`
  ipc::Counter changes;
  std::int64_t reads;
  Counts counts;
};

struct LiveTable::Entry {
  State state;
  std::int32_t readers; // operators
  std::int32_t expected_by; // ranks
  std::int64_t read_at; // count of reads when the last one began
};

std::size_t LiveTable::bytes_for(std::size_t parameters) {
  const std::size_t bytes = sizeof(Shared) + parameters * sizeof(Entry);
  return (bytes + kPage - 1) / kPage * kPage;
}

LiveTable::LiveTable(
    std::byte* memory,
    std::vector<std::int64_t> elements,
    std::int64_t most_elements,
    Release release)
    : shared_(reinterpret_cast<Shared*>(memory)),
      elements_(std::move(elements)),
      most_elements_(most_elements),
      release_(std::move(release)) {}

void LiveTable::make() {
  shared_->mutex.make();
}

LiveTable::Entry& LiveTable::entry(int parameter) const {
  return reinterpret_cast<Entry*>(shared_ + 1)[parameter];
}

/// The one whose last read is the longest ago, of those that nobody reads; -1 if there is none.
int LiveTable::oldest(bool also_expected) const {
  int found = -1;
  for (int i = 0; i < static_cast<int>(elements_.size()); ++i) {
    const Entry& each = entry(i);
    if (each.state == State::kWhole && each.readers == 0 &&
        (also_expected || each.expected_by == 0) &&
        (found < 0 || each.read_at < entry(found).read_at)) {
      found = i;
    }
  }
  return found;
}

/// For as many elements more below the cap. What is needed is worth more than what is expected, and
/// waits for fetches that take its room; for what is expected nothing is released in vain.
LiveTable::Room LiveTable::make_room(std::int64_t elements, bool needed) {
  bool coming = false; // and nobody reads it yet
  std::int64_t stays = 0;
  for (int i = 0; i < static_cast<int>(elements_.size()); ++i) {
    const Entry& each = entry(i);
    coming = coming || (each.state == State::kComing && each.readers == 0);
    const bool kept = each.readers > 0 || each.expected_by > 0 || each.state == State::kComing;
    stays += each.state != State::kAbsent && kept ? elements_[i] : 0;
  }
  if (!needed && stays + elements > most_elements_) {
    return Room::kNone;
  }
  Counts& counts = shared_->counts;
  while (counts.live_elements + elements > most_elements_) {
    int victim = oldest(/*also_expected=*/false);
    if (victim < 0 && needed) {
      victim = oldest(/*also_expected=*/true);
    }
    if (victim < 0) {
      return coming ? Room::kSoon : Room::kNone;
    }
    entry(victim).state = State::kAbsent;
    counts.live_elements -= elements_[victim];
    release_(victim);
  }
  return Room::kThere;
}

void LiveTable::take(int parameter, bool ahead, Claim& claim) {
  Counts& counts = shared_->counts;
  entry(parameter).state = State::kComing;
  counts.live_elements += elements_[parameter];
  counts.highest_elements = std::max(counts.highest_elements, counts.live_elements);
  ++counts.fetches;
  counts.ahead += ahead ? 1 : 0;
  claim.fetch.push_back(parameter);
}

void LiveTable::begin_reading(
    const std::vector<int>& parameters,
    const std::vector<int>& expected_before,
    const std::vector<int>& expected) {
  const std::lock_guard lock(shared_->mutex);
  for (const int index : parameters) {
    ++entry(index).readers;
    entry(index).read_at = ++shared_->reads;
  }
  for (const int index : expected_before) {
    --entry(index).expected_by;
  }
  for (const int index : expected) {
    ++entry(index).expected_by;
  }
}

LiveTable::Claim LiveTable::claim(
    const std::vector<int>& parameters,
    const std::vector<int>& expected) {
  Claim claim;
  claim.seen = shared_->changes.value.load();
  claim.ready = true;
  const std::lock_guard lock(shared_->mutex);
  for (const int index : parameters) {
    // An operator cannot do without it: where all else is being read it exceeds the cap.
    if (entry(index).state == State::kAbsent) {
      if (make_room(elements_[index], /*needed=*/true) == Room::kSoon) {
        claim.ready = false;
        return claim;
      }
      take(index, /*ahead=*/false, claim);
    }
    claim.ready = claim.ready && entry(index).state == State::kWhole;
  }
  for (const int index : expected) {
    if (entry(index).state != State::kAbsent) {
      continue;
    }
    if (make_room(elements_[index], /*needed=*/false) != Room::kThere) {
      break; // gathering ahead pauses until there is room
    }
    take(index, /*ahead=*/true, claim);
  }
  return claim;
}

void LiveTable::wait(std::uint32_t seen, std::chrono::milliseconds timeout) {
  if (shared_->changes.value.load() == seen) {
    shared_->changes.sleep_while(seen, timeout);
  }
}

void LiveTable::arrived(int parameter) {
  {
    const std::lock_guard lock(shared_->mutex);
    TESSERA_CHECK(entry(parameter).state == State::kComing);
    entry(parameter).state = State::kWhole;
  }
  shared_->changes.raise();
}

void LiveTable::end_reading(const std::vector<int>& parameters) {
  const std::lock_guard lock(shared_->mutex);
  for (const int index : parameters) {
    --entry(index).readers;
  }
  make_room(0, /*needed=*/true);
}

void LiveTable::leave(const std::vector<int>& expected) {
  const std::lock_guard lock(shared_->mutex);
  for (const int index : expected) {
    --entry(index).expected_by;
  }
}

void LiveTable::forget() {
  const std::lock_guard lock(shared_->mutex);
  for (int i = 0; i < static_cast<int>(elements_.size()); ++i) {
    Entry& each = entry(i);
    TESSERA_CHECK(each.readers == 0 && each.state != State::kComing);
    if (each.state == State::kWhole) {
      each.state = State::kAbsent;
      release_(i);
    }
  }
  shared_->counts.live_elements = 0;
}

LiveTable::Counts LiveTable::counts() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->counts;
}

} // namespace tessera::sharding
