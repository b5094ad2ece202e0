#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include <ATen/ATen.h>

#include "tessera/autotune/probe/probe.h"
#include "tessera/base/error.h"
#include "tessera/base/host.h"
#include "tessera/base/stopwatch.h"
#include "tessera/planner/description.h"

namespace tessera::autotune {

namespace {

// Packs a measurement as a cluster file of one node, which holds the speeds, and the
// figures that such a file does not have.
c10::IValue pack(const RankMeasurement& one) {
  cost::Cluster carrier;
  carrier.name = one.host;
  cost::DeviceKind kind;
  kind.name = "device";
  kind.memory_bytes = one.free_bytes;
  kind.speed = one.speed;
  carrier.kinds.push_back(std::move(kind));
  carrier.nodes.push_back({.kind = 0, .count = 1});
  return c10::ivalue::Tuple::create(
      {c10::IValue(planner::cluster_to_json(carrier)),
       c10::IValue(one.processor),
       c10::IValue(at::tensor(
           {one.alone_layers_per_s,
            one.busy_bytes_per_s,
            one.spread,
            static_cast<double>(one.repeated),
            one.offload_bytes_per_s,
            one.offload_room_bytes,
            one.elapsed_seconds,
            one.own_seconds,
            one.machine_seconds,
            one.update_bytes_per_s},
           at::kDouble)),
       c10::IValue(one.machine),
       c10::IValue(one.busy_layers_per_s),
       c10::IValue(one.alone_by_round),
       c10::IValue(one.processors)});
}

RankMeasurement unpack(const c10::IValue& value) {
  const auto& parts = value.toTupleRef().elements();
  const cost::Cluster carrier = planner::cluster_from_json(parts[0].toStringRef(), "probe");
  RankMeasurement one;
  one.host = carrier.name;
  one.free_bytes = carrier.kinds[0].memory_bytes;
  one.speed = carrier.kinds[0].speed;
  one.processor = parts[1].toStringRef();
  const at::Tensor rates = parts[2].toTensor();
  one.alone_layers_per_s = rates[0].item<double>();
  one.busy_bytes_per_s = rates[1].item<double>();
  one.spread = rates[2].item<double>();
  one.repeated = static_cast<int>(rates[3].item<double>());
  one.offload_bytes_per_s = rates[4].item<double>();
  one.offload_room_bytes = rates[5].item<double>();
  one.elapsed_seconds = rates[6].item<double>();
  one.own_seconds = rates[7].item<double>();
  one.machine_seconds = rates[8].item<double>();
  one.update_bytes_per_s = rates[9].item<double>();
  one.machine = parts[3].toStringRef();
  one.busy_layers_per_s = parts[4].toDoubleVector();
  one.alone_by_round = parts[5].toDoubleVector();
  one.processors = parts[6].toIntVector();
  return one;
}

// Who uses the processors from its construction on.
class Load {
 public:
  void note(RankMeasurement& result) const {
    result.machine = machine_id();
    result.elapsed_seconds = seconds_since(begin_);
    result.own_seconds = own_processor_seconds() - own_;
    const std::optional<double> all = busy_processor_seconds();
    if (all && all_) {
      result.machine_seconds = *all - *all_;
    }
  }

 private:
  Clock::time_point begin_ = Clock::now();
  double own_ = own_processor_seconds();
  std::optional<double> all_ = busy_processor_seconds();
};

} // namespace

cost::Cluster measure_cluster(comm::World& world, const Effort& effort) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto everyone = world.new_group("probe", ranks);
  everyone->barrier(); // all begin together
  const Load load;
  RankMeasurement mine = measure_speed(world, *everyone, effort);
  cost::ProbeQuality quality;
  quality.rounds = effort.rounds;
  measure_offloading(world, *everyone, effort, mine);
  const auto pairs = measure_links(world, *everyone, effort, quality);
  std::vector<cost::GroupWaiting> waiting;
  auto collectives = measure_collectives(world, *everyone, effort, quality, waiting);
  everyone->barrier();
  load.note(mine);
  std::vector<RankMeasurement> all;
  for (const c10::IValue& value : comm::gather_object(world, *everyone, pack(mine), 0)) {
    all.push_back(unpack(value));
  }
  // Rank 0 makes the cluster or the error, and all ranks take it from there.
  std::string text;
  std::string failure;
  if (world.rank() == 0) {
    try {
      cost::Cluster cluster = to_cluster(all, pairs, std::move(collectives), quality);
      cluster.waiting = std::move(waiting);
      text = planner::cluster_to_json(cluster);
    } catch (const ConfigError& error) {
      failure = error.what();
    }
  }
  const c10::IValue agreed = comm::broadcast_object(
      world, *everyone, c10::ivalue::Tuple::create({c10::IValue(text), c10::IValue(failure)}), 0);
  const auto& parts = agreed.toTupleRef().elements();
  if (!parts[1].toStringRef().empty()) {
    throw ConfigError(parts[1].toStringRef());
  }
  return planner::cluster_from_json(parts[0].toStringRef(), "probe");
}

cost::Cluster measure_cluster_now(const Effort& effort) {
  comm::WorldOptions options;
  // The timeout is short, so that an unreachable rank does not block the others for long.
  options.timeout = std::chrono::seconds(120);
  const auto world = comm::mpi_world(options);
  try {
    return measure_cluster(*world, effort);
  } catch (const ConfigError&) {
    throw; // the same on every rank
  } catch (const std::exception& error) {
    if (world->size() > 1) {
      // The other ranks wait for this one, so end them too. abort does not return.
      world->abort(error.what(), 1);
    }
    throw;
  }
}

} // namespace tessera::autotune
