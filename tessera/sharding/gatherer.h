#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/sharding/live_table.h"
#include "tessera/sharding/part_service.h"
#include "tessera/sharding/read_order.h"

namespace tessera::sharding {

/// Makes parameters of a shard group over several nodes whole for the time of operators, and those
/// that come next ahead of their time.
/// Threads: any, unless a member says otherwise.
class Gatherer {
 public:
  /// The number of parameters that are gathered ahead of their reader: those of about two layers.
  static constexpr std::size_t kAhead = 4;

  /// `model` is its number in the service. `owns_table`: this rank, of all that use the table,
  /// calls LiveTable::forget.
  Gatherer(
      const std::shared_ptr<PartService>& service,
      int model,
      std::shared_ptr<LiveTable> table,
      bool owns_table,
      std::vector<std::string> names,
      std::chrono::milliseconds timeout);
  ~Gatherer();
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  /// Waits until these parameters are whole, and keeps them so until `end_reading`. It waits for no
  /// script and no operator.
  /// Throws: CommError when their parts do not come; UserError after `shutdown`.
  void begin_reading(const std::vector<int>& parameters);
  void end_reading(const std::vector<int>& parameters) noexcept;

  /// Threads: step thread only, as the three below.
  void begin_step();
  /// Waits until nothing is on its way to this rank, which reads no more before `go_on`.
  /// Throws: CommError.
  void pause();
  /// Forgets what was gathered; is called when all ranks of the group have paused, before values
  /// change.
  void forget();
  void go_on();

  LiveTable::Counts counts() const {
    return table_->counts();
  }

 private:
  void wait_for(const std::vector<int>& parameters, const std::vector<int>& expected);

  std::weak_ptr<PartService> service_; // `shutdown` ends it
  int model_;
  std::shared_ptr<LiveTable> table_;
  bool owns_table_;
  std::vector<std::string> names_;
  std::chrono::milliseconds timeout_;

  std::mutex mutex_; // of what follows
  ReadOrder order_;
  std::vector<int> expected_;
  bool paused_ = false;
};

/// The time of an operator that reads these parameters.
class Reading {
 public:
  /// Throws: as Gatherer::begin_reading.
  Reading(std::shared_ptr<Gatherer> gatherer, std::vector<int> parameters)
      : gatherer_(std::move(gatherer)), parameters_(std::move(parameters)) {
    gatherer_->begin_reading(parameters_);
  }
  ~Reading() {
    gatherer_->end_reading(parameters_);
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  std::shared_ptr<Gatherer> gatherer_;
  std::vector<int> parameters_;
};

} // namespace tessera::sharding
