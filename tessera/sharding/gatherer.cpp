#include "tessera/sharding/gatherer.h"

#include <exception>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::sharding {

namespace {

// What another rank of the node fetches may never come, so its failure is looked for.
constexpr std::chrono::milliseconds kLookForFailure{50};

} // namespace

Gatherer::Gatherer(
    const std::shared_ptr<PartService>& service,
    int model,
    std::shared_ptr<LiveTable> table,
    bool owns_table,
    std::vector<std::string> names,
    std::chrono::milliseconds timeout)
    : service_(service),
      model_(model),
      table_(std::move(table)),
      owns_table_(owns_table),
      names_(std::move(names)),
      timeout_(timeout) {}

Gatherer::~Gatherer() {
  try {
    table_->leave(expected_);
    if (const auto service = service_.lock()) {
      service->leave(model_);
    }
  } catch (const std::exception& error) {
    log::warning(
        str("the ranks of a shard group do not learn that this one leaves: ", error.what()));
  }
}

void Gatherer::begin_reading(const std::vector<int>& parameters) {
  std::vector<int> expected;
  {
    const std::lock_guard lock(mutex_);
    TESSERA_CHECK(!paused_, "a parameter is read while its values change");
    for (const int parameter : parameters) {
      order_.read(parameter);
    }
    expected = order_.next(kAhead, parameters);
    table_->begin_reading(parameters, expected_, expected);
    expected_ = expected;
  }
  try {
    wait_for(parameters, expected);
  } catch (...) {
    end_reading(parameters);
    throw;
  }
}

void Gatherer::wait_for(const std::vector<int>& parameters, const std::vector<int>& expected) {
  const Deadline deadline(timeout_);
  for (;;) {
    const auto service = service_.lock();
    if (service == nullptr) {
      throw UserError(
          str("the parameter '",
              names_[parameters.front()],
              "' is read after tessera::shutdown, but parts of it are on other nodes "
              "(sharded_data_parallel_degree); take model.state_dict() before"));
    }
    const LiveTable::Claim claim = table_->claim(parameters, expected);
    for (const int parameter : claim.fetch) {
      service->fetch(model_, parameter);
    }
    if (claim.ready) {
      return;
    }
    table_->wait(claim.seen, kLookForFailure);
    service->throw_if_failed();
    if (deadline.passed()) {
      throw CommError(
          str("a rank has waited ",
              timeout_.count() / 1000.0,
              " s for the parameter '",
              names_[parameters.front()],
              "', of which ranks of other nodes keep parts (sharded_data_parallel_degree); see "
              "whether one of them has ended, or write a longer timeout_seconds"));
    }
  }
}

void Gatherer::end_reading(const std::vector<int>& parameters) noexcept {
  try {
    table_->end_reading(parameters);
  } catch (const std::exception& error) { // the next read throws it again
    log::warning(str("the end of a read of a parameter is not noted: ", error.what()));
  }
}

void Gatherer::begin_step() {
  const std::lock_guard lock(mutex_);
  order_.begin_step();
}

void Gatherer::pause() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = true;
  }
  if (const auto service = service_.lock()) {
    service->drain(model_);
  }
}

void Gatherer::forget() {
  if (owns_table_) {
    table_->forget();
  }
}

void Gatherer::go_on() {
  const std::lock_guard lock(mutex_);
  paused_ = false;
}

} // namespace tessera::sharding
