#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/sharding/live_parameters.h"
#include "tessera/sharding/part_service.h"

namespace tessera::sharding {

/// Whole parameters of a shard group whose ranks are on several nodes, for the time of operators.
/// Threads: any.
class Gatherer {
 public:
  /// `most_elements` is sdp_max_live_parameters; `elements` of each parameter of the service.
  Gatherer(
      std::shared_ptr<PartService> service,
      std::int64_t most_elements,
      const std::vector<std::int64_t>& elements);
  ~Gatherer();
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  /// Waits until these parameters are whole, and keeps them so until `end_reading`.
  /// Throws: CommError when their parts do not come.
  std::vector<std::byte*> begin_reading(const std::vector<int>& parameters);
  void end_reading(const std::vector<int>& parameters);

  void begin_step();
  /// Before values change. Throws: CommError when an answer does not come.
  void forget();

  const PartService& service() const {
    return *service_;
  }
  /// Other ranks may need it for longer than this one needs the gatherer.
  std::shared_ptr<const PartService> shared_service() const {
    return service_;
  }
  std::int64_t live_elements() const;
  std::int64_t highest_elements() const;

 private:
  std::vector<std::shared_ptr<PartService::Gathering>> start(const std::vector<int>& parameters);
  void drop(const std::vector<int>& parameters);

  std::shared_ptr<PartService> service_;
  mutable std::mutex mutex_; // of what follows
  LiveParameters live_;
  std::vector<std::shared_ptr<PartService::Gathering>> gatherings_; // of each parameter
};

} // namespace tessera::sharding
