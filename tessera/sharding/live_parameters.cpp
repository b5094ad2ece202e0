#include "tessera/sharding/live_parameters.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::sharding {

void LiveParameters::add(std::int64_t elements) {
  parameters_.push_back({.elements = elements});
}

void LiveParameters::begin_step() {
  if (!learning_.empty()) {
    order_ = std::exchange(learning_, {});
  }
  next_ = 0;
}

/// Goes on behind the next read of this parameter. A read that the order does not have leaves the
/// position as it is, because the step may come back to its way.
void LiveParameters::follow(int parameter) {
  if (learning_.size() < kLongestOrder && (learning_.empty() || learning_.back() != parameter)) {
    learning_.push_back(parameter);
  }
  const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(next_);
  const auto found = std::find(begin, order_.end(), parameter);
  if (found != order_.end()) {
    next_ = static_cast<std::size_t>(found - order_.begin()) + 1;
  }
}

void LiveParameters::expect_next() {
  for (const int parameter : expected_) {
    parameters_[parameter].expected = false;
  }
  expected_.clear();
  for (std::size_t i = next_; i < order_.size() && expected_.size() < kAhead; ++i) {
    Parameter& parameter = parameters_[order_[i]];
    if (!parameter.expected && parameter.readers == 0) {
      parameter.expected = true;
      expected_.push_back(order_[i]);
    }
  }
}

/// The one whose last read is the longest ago, of those that nobody reads; -1 if there is none.
int LiveParameters::oldest(bool also_expected) const {
  int found = -1;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (parameter.live && parameter.readers == 0 && (also_expected || !parameter.expected) &&
        (found < 0 || parameter.read_at < parameters_[found].read_at)) {
      found = static_cast<int>(i);
    }
  }
  return found;
}

void LiveParameters::release(int parameter, std::vector<int>& released) {
  parameters_[parameter].live = false;
  live_elements_ -= parameters_[parameter].elements;
  released.push_back(parameter);
}

/// Until as many elements more are below the cap. Returns false if nothing is left to release; what
/// is expected goes last, or not at all.
bool LiveParameters::make_room(
    std::int64_t elements,
    bool also_expected,
    std::vector<int>& released) {
  if (!also_expected) { // nothing is released for what does not fit even then
    std::int64_t staying = 0;
    for (const Parameter& parameter : parameters_) {
      const bool stays = parameter.live && (parameter.readers > 0 || parameter.expected);
      staying += stays ? parameter.elements : 0;
    }
    if (staying + elements > most_elements_) {
      return false;
    }
  }
  while (live_elements_ + elements > most_elements_) {
    int victim = oldest(/*also_expected=*/false);
    if (victim < 0 && also_expected) {
      victim = oldest(/*also_expected=*/true);
    }
    if (victim < 0) {
      return false;
    }
    release(victim, released);
  }
  return true;
}

void LiveParameters::gather(int parameter, Changes& changes) {
  parameters_[parameter].live = true;
  live_elements_ += parameters_[parameter].elements;
  highest_elements_ = std::max(highest_elements_, live_elements_);
  changes.gather.push_back(parameter);
}

LiveParameters::Changes LiveParameters::begin_reading(const std::vector<int>& parameters) {
  Changes changes;
  for (const int index : parameters) {
    follow(index);
    ++parameters_[index].readers;
    parameters_[index].read_at = ++reads_;
  }
  expect_next();
  for (const int index : parameters) {
    if (!parameters_[index].live) { // an operator cannot do without it, room or not
      make_room(parameters_[index].elements, /*also_expected=*/true, changes.release);
      gather(index, changes);
    }
  }
  for (const int index : expected_) {
    if (parameters_[index].live) {
      continue;
    }
    if (!make_room(parameters_[index].elements, /*also_expected=*/false, changes.release)) {
      break; // gathering pauses until there is room
    }
    gather(index, changes);
  }
  return changes;
}

std::vector<int> LiveParameters::end_reading(const std::vector<int>& parameters) {
  for (const int index : parameters) {
    --parameters_[index].readers;
  }
  std::vector<int> released;
  make_room(0, /*also_expected=*/true, released);
  return released;
}

void LiveParameters::forget() {
  for (Parameter& parameter : parameters_) {
    TESSERA_CHECK(parameter.readers == 0);
    parameter.live = false;
  }
  live_elements_ = 0;
}

} // namespace tessera::sharding
