// Latency and bandwidth between pairs of ranks, the transport beside plain
// MPI in one run.
//   mpirun -n 2 transport_bench [FILE.json]     (-n 4: two pairs at a time)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <mpi.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "bench/transport/paths.h"

namespace tessera::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kLargest = std::size_t{64} << 20;
// Bytes on the way before the receiver answers: well inside the buffer.
constexpr std::size_t kWindow = std::size_t{64} << 20;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Latency {
  double p50 = 0;
  double p99 = 0;
};

// Half of a round trip. Units: microseconds.
Latency one_way(Path& path, bool first, std::size_t bytes, int rounds) {
  std::vector<double> times;
  for (int i = -rounds / 10; i < rounds; ++i) { // the first tenth warms up
    const auto start = Clock::now();
    if (first) {
      path.send(bytes);
      path.receive(bytes, false);
    } else {
      path.receive(bytes, false);
      path.send(bytes);
    }
    if (i >= 0) {
      times.push_back(microseconds_since(start) / 2);
    }
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

// Median over windows of messages, each answered by an empty one.
// Units: 1e9 bytes per second.
double bandwidth(Path& path, bool first, std::size_t bytes, bool read) {
  const int messages = static_cast<int>(std::min<std::size_t>(kWindow / bytes, 64));
  constexpr int kWindows = 15;
  std::vector<double> rates;
  for (int window = -2; window < kWindows; ++window) {
    const auto start = Clock::now();
    for (int i = 0; i < messages; ++i) {
      if (first) {
        path.send(bytes);
      } else {
        path.receive(bytes, read);
      }
    }
    if (first) {
      path.receive(0, false);
    } else {
      path.send(0);
    }
    if (window >= 0) {
      rates.push_back(static_cast<double>(bytes) * messages / microseconds_since(start) / 1e3);
    }
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

int run(const std::string& json_file) {
  comm::WorldOptions options;
  const auto world = comm::mpi_world(options);
  at::set_num_threads(1);
  if (world->size() % 2 != 0) {
    std::fprintf(stderr, "an even number of ranks is needed\n");
    return 2;
  }
  const int partner = world->rank() ^ 1;
  const bool first = world->rank() % 2 == 0;
  const bool prints = world->rank() == 0;
  std::vector<PathPtr> paths;
  paths.push_back(plain_mpi(partner, kLargest));
  for (const Kind kind : {Kind::kMapped, Kind::kCopied, Kind::kOtherNode}) {
    paths.push_back(transport(*world, partner, kLargest, kind));
  }
  nlohmann::json result;
  result["ranks"] = world->size();
  result["cores"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  const auto header = [&](const char* title) {
    if (prints) {
      std::printf("\n%-34s", title);
      for (const auto& path : paths) {
        std::printf(" %18s", path->name().c_str());
      }
      std::printf("\n");
    }
  };
  header("one-way latency, us, p50 (p99)");
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4096}}) {
    if (prints) {
      std::printf("%32zu B", bytes);
    }
    for (const auto& path : paths) {
      MPI_Barrier(MPI_COMM_WORLD);
      const Latency time = one_way(*path, first, bytes, 2000);
      result["latency_us"][path->name()][std::to_string(bytes)] = {
          {"p50", time.p50}, {"p99", time.p99}};
      if (prints) {
        std::printf(" %9.1f (%6.1f)", time.p50, time.p99);
        std::fflush(stdout);
      }
    }
    if (prints) {
      std::printf("\n");
    }
  }
  for (const bool read : {false, true}) {
    header(read ? "GB/s, received and read" : "GB/s, received");
    for (std::size_t bytes = 64 << 10; bytes <= kLargest; bytes *= 4) {
      if (prints) {
        std::printf("%30zu KiB", bytes >> 10);
      }
      for (const auto& path : paths) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double rate = bandwidth(*path, first, bytes, read);
        result[read ? "read_gb_s" : "gb_s"][path->name()][std::to_string(bytes)] = rate;
        if (prints) {
          std::printf(" %18.2f", rate);
          std::fflush(stdout);
        }
      }
      if (prints) {
        std::printf("\n");
      }
    }
  }
  if (prints && !json_file.empty()) {
    std::ofstream(json_file) << result.dump(2) << '\n';
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return 0;
}

} // namespace
} // namespace tessera::bench

int main(int argc, char** argv) {
  return tessera::bench::run(argc > 1 ? argv[1] : "");
}
