#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/offload/file_host.h"
#include "tessera/tessera.h"

namespace tessera::bench {

/// What the folder of offloaded activations takes and gives. Units: MiB/s of one rank.
struct DiskSpeed {
  double out = 0;
  double in = 0;
  bool direct = false; // past the system's cache of files
};

/// Copies of a megabyte between memory and the file, as the offloader makes them, on all ranks at
/// once: they share the disk. Collective over the world.
inline DiskSpeed disk_speed(const std::string& directory, std::int64_t megabytes) {
  constexpr std::int64_t kPiece = 1 << 20;
  offload::FileHost host(
      directory.empty() ? std::filesystem::temp_directory_path().string() : directory,
      "bench_memory");
  const at::Tensor memory = at::full({kPiece}, 7, at::kByte);
  std::vector<offload::Place> places;
  for (std::int64_t i = 0; i < megabytes; ++i) {
    places.push_back(host.reserve(kPiece));
  }
  const auto rate_of = [&](bool out) {
    barrier();
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<offload::Copy>> copies;
    for (const offload::Place& place : places) {
      copies.push_back(out ? host.copy_out(memory, place) : host.copy_in(place, memory));
    }
    for (const auto& copy : copies) {
      copy->wait();
    }
    barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return static_cast<double>(megabytes) / seconds.count();
  };
  DiskSpeed speed;
  speed.out = rate_of(true);
  speed.in = rate_of(false);
  speed.direct = host.direct();
  return speed;
}

} // namespace tessera::bench
