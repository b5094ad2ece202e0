#include <algorithm>
#include <utility>

#include "tessera/timeline/timeline.h"

namespace tessera::timeline {

Recorder::Recorder(int rank, int pp_rank, std::size_t capacity)
    : rank_(rank), pp_rank_(pp_rank), capacity_(capacity) {}

void Recorder::enable(bool on) {
  enabled_.store(on, std::memory_order_relaxed);
}

bool Recorder::enabled() const {
  return enabled_.load(std::memory_order_relaxed);
}

double Recorder::now_us() const {
  using Clock = std::chrono::steady_clock;
  const Clock::duration since(
      Clock::now().time_since_epoch().count() - origin_.load(std::memory_order_relaxed));
  return std::chrono::duration<double, std::micro>(since).count();
}

void Recorder::set_origin() {
  origin_.store(
      std::chrono::steady_clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

void Recorder::add(Event event) {
  if (!enabled()) {
    return;
  }
  event.rank = rank_;
  event.pp_rank = pp_rank_;
  const std::lock_guard lock(mutex_);
  if (events_.size() >= capacity_) {
    ++dropped_;
    return;
  }
  events_.push_back(std::move(event));
}

std::vector<Event> Recorder::take() {
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
    dropped_ = 0;
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.start_us < b.start_us;
  });
  return events;
}

std::size_t Recorder::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

Span::Span(Recorder& recorder, std::string name, std::string category, int step)
    : recorder_(recorder.enabled() ? &recorder : nullptr) {
  if (recorder_ != nullptr) {
    event_.name = std::move(name);
    event_.category = std::move(category);
    event_.step = step;
    event_.start_us = recorder.now_us();
  }
}

Span::~Span() {
  if (recorder_ != nullptr) {
    event_.end_us = recorder_->now_us();
    recorder_->add(std::move(event_));
  }
}

} // namespace tessera::timeline
