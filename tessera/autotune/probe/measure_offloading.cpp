#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include <ATen/ATen.h>

#include "tessera/autotune/probe/probe.h"
#include "tessera/base/error.h"
#include "tessera/offload/file_host.h"

namespace tessera::autotune {

namespace {

// What offloads in a run, in the folder that it takes when none is said.
class Disk {
 public:
  Disk() : host_(std::filesystem::temp_directory_path().string(), "probe") {
    at::Tensor memory = at::zeros({kBytes}, at::kByte);
    if (!host_.in_memory()) {
      memory_ = memory;
      place_ = host_.reserve(kBytes);
    }
  }

  bool saves_memory() const {
    return memory_.defined();
  }
  /// Returns the bytes of a second out and back, the slower of the two.
  double bytes_per_s() {
    const double out = seconds_of([&] { return host_.copy_out(memory_, place_); });
    const double in = seconds_of([&] { return host_.copy_in(place_, memory_); });
    return static_cast<double>(kBytes) / std::max(out, in);
  }

 private:
  static constexpr std::int64_t kBytes = std::int64_t{4} << 20;

  template <typename Begin>
  static double seconds_of(const Begin& begin) {
    const auto start = std::chrono::steady_clock::now();
    begin()->wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  offload::FileHost host_;
  at::Tensor memory_;
  offload::Place place_;
};

} // namespace

void measure_offloading(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    RankMeasurement& result) {
  std::optional<Disk> disk;
  double room = 0;
  try {
    disk.emplace();
    room = static_cast<double>(
        std::filesystem::space(std::filesystem::temp_directory_path()).available);
  } catch (const ConfigError&) { // no file can be made there: nothing is offloaded
    disk.reset();
  } catch (const std::filesystem::filesystem_error&) { // likewise no folder
    disk.reset();
  }
  if (disk && !disk->saves_memory()) {
    disk.reset();
  }
  for (int round = 0; round < effort.rounds; ++round) {
    everyone.barrier();
    if (!disk) {
      continue;
    }
    try {
      result.offload_bytes_per_s = std::max(result.offload_bytes_per_s, disk->bytes_per_s());
      result.offload_room_bytes = room / world.local_size();
    } catch (const ConfigError&) { // the disk is full
      disk.reset();
      result.offload_bytes_per_s = 0;
      result.offload_room_bytes = 0;
    }
  }
  everyone.barrier();
}

} // namespace tessera::autotune
