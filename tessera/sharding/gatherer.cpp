#include "tessera/sharding/gatherer.h"

#include <exception>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::sharding {

Gatherer::Gatherer(
    std::shared_ptr<PartService> service,
    std::int64_t most_elements,
    const std::vector<std::int64_t>& elements)
    : service_(std::move(service)), live_(most_elements), gatherings_(elements.size()) {
  for (const std::int64_t count : elements) {
    live_.add(count);
  }
}

Gatherer::~Gatherer() {
  try {
    service_->leave();
  } catch (const std::exception& error) {
    log::warning(
        str("the ranks of a shard group do not learn that this one leaves: ", error.what()));
  }
}

void Gatherer::drop(const std::vector<int>& parameters) {
  for (const int parameter : parameters) {
    if (const auto gathering = std::exchange(gatherings_[parameter], nullptr)) {
      service_->release(*gathering);
    }
  }
}

std::vector<std::shared_ptr<PartService::Gathering>> Gatherer::start(
    const std::vector<int>& parameters) {
  const std::lock_guard lock(mutex_);
  const LiveParameters::Changes changes = live_.begin_reading(parameters);
  drop(changes.release);
  std::vector<std::shared_ptr<PartService::Gathering>> read;
  for (const int parameter : changes.gather) {
    gatherings_[parameter] = service_->start(parameter);
  }
  for (const int parameter : parameters) {
    auto& gathering = gatherings_[parameter];
    if (gathering == nullptr) { // an earlier start has failed
      gathering = service_->start(parameter);
    }
    read.push_back(gathering);
  }
  return read;
}

std::vector<std::byte*> Gatherer::begin_reading(const std::vector<int>& parameters) {
  std::vector<std::byte*> numbers;
  try {
    for (const auto& gathering : start(parameters)) {
      service_->wait(*gathering);
      numbers.push_back(static_cast<std::byte*>(gathering->whole.data_ptr()));
    }
  } catch (...) {
    end_reading(parameters);
    throw;
  }
  return numbers;
}

void Gatherer::end_reading(const std::vector<int>& parameters) {
  const std::lock_guard lock(mutex_);
  drop(live_.end_reading(parameters));
}

void Gatherer::begin_step() {
  const std::lock_guard lock(mutex_);
  live_.begin_step();
}

void Gatherer::forget() {
  {
    const std::lock_guard lock(mutex_);
    live_.forget();
    for (std::size_t i = 0; i < gatherings_.size(); ++i) {
      drop({static_cast<int>(i)});
    }
  }
  service_->drain();
}

std::int64_t Gatherer::live_elements() const {
  const std::lock_guard lock(mutex_);
  return live_.live_elements();
}

std::int64_t Gatherer::highest_elements() const {
  const std::lock_guard lock(mutex_);
  return live_.highest_elements();
}

} // namespace tessera::sharding
