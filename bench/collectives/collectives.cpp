// Our collectives against MPI's own, alternating call by call in one run, so
// that whatever else the machine does meets both alike. Run under mpirun:
//
//   mpirun -n 4 bench_collectives [--repeats 21] [--json FILE]
//
// A time runs from when the last rank was ready until the last one was done
// (the clock is one for all ranks of a node); small tensors are sent several
// times in a row. The table shows medians, and the fastest of each in brackets,
// which other load on the machine disturbs least. GB/s is bytes of the (longer)
// tensor of one rank over the median.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <mpi.h>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/statistics.h"
#include "tessera/comm/world.h"

namespace {

using tessera::median;
using tessera::comm::ProcessGroup;
using tessera::comm::ReduceOp;

struct Measured {
  std::string name;
  std::int64_t bytes;
  double ours_s;
  double mpi_s;
  double ours_fastest_s;
  double mpi_fastest_s;
};

struct Contest {
  std::string name;
  std::function<void()> ours;
  std::function<void()> mpi;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of one of `calls` calls in a row.
double time_once(const std::function<void()>& run, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  double times[2] = {now(), 0};
  for (int i = 0; i < calls; ++i) {
    run();
  }
  times[1] = now();
  MPI_Allreduce(MPI_IN_PLACE, times, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return (times[1] - times[0]) / calls;
}

/// Bytes copied by one rank while all ranks copy, per second.
double copy_bandwidth(int repeats) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes, 2);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    seconds.push_back(time_once([&] { std::memcpy(to.data(), from.data(), kBytes); }, 1));
  }
  return static_cast<double>(kBytes) / median(seconds);
}

std::vector<Contest> contests(ProcessGroup& group, at::Tensor& whole, at::Tensor& part) {
  float* all = whole.data_ptr<float>();
  float* one = part.data_ptr<float>();
  const int count = static_cast<int>(whole.numel());
  const int slice = static_cast<int>(part.numel());
  return {
      {"all_reduce",
       [&group, &whole] { group.all_reduce(whole); },
       [=] { MPI_Allreduce(MPI_IN_PLACE, all, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }},
      {"all_gather",
       [&group, &whole, &part] { group.all_gather(whole, part); },
       [=] { MPI_Allgather(one, slice, MPI_FLOAT, all, slice, MPI_FLOAT, MPI_COMM_WORLD); }},
      {"reduce_scatter",
       [&group, &whole, &part] { group.reduce_scatter(part, whole); },
       [=] { MPI_Reduce_scatter_block(all, one, slice, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }},
      {"broadcast",
       [&group, &whole] { group.broadcast(whole, 0); },
       [=] { MPI_Bcast(all, count, MPI_FLOAT, 0, MPI_COMM_WORLD); }}};
}

Measured measure(const Contest& contest, std::int64_t bytes, int repeats) {
  std::vector<double> ours;
  std::vector<double> mpi;
  const int calls =
      static_cast<int>(std::clamp<std::int64_t>((std::int64_t{1} << 20) / bytes, 1, 50));
  for (int i = 0; i < repeats + 2; ++i) {
    const double our_time = time_once(contest.ours, calls);
    const double mpi_time = time_once(contest.mpi, calls);
    if (i >= 2) { // the first calls meet cold memory
      ours.push_back(our_time);
      mpi.push_back(mpi_time);
    }
  }
  return {
      contest.name,
      bytes,
      median(ours),
      median(mpi),
      *std::min_element(ours.begin(), ours.end()),
      *std::min_element(mpi.begin(), mpi.end())};
}

void print(const Measured& result) {
  const double gigabytes = static_cast<double>(result.bytes) / 1e9;
  std::printf(
      "%-15s %8lld KiB %9.1f (%9.1f) us %9.1f (%9.1f) us %7.2f %7.2f "
      "%7.2f (%5.2f)\n",
      result.name.c_str(),
      static_cast<long long>(result.bytes >> 10),
      result.ours_s * 1e6,
      result.ours_fastest_s * 1e6,
      result.mpi_s * 1e6,
      result.mpi_fastest_s * 1e6,
      gigabytes / result.ours_s,
      gigabytes / result.mpi_s,
      result.mpi_s / result.ours_s,
      result.mpi_fastest_s / result.ours_fastest_s);
  std::fflush(stdout);
}

nlohmann::json to_json(const Measured& result) {
  return {
      {"collective", result.name},
      {"bytes", result.bytes},
      {"ours_us", result.ours_s * 1e6},
      {"mpi_us", result.mpi_s * 1e6},
      {"ours_fastest_us", result.ours_fastest_s * 1e6},
      {"mpi_fastest_us", result.mpi_fastest_s * 1e6},
      {"ratio", result.mpi_s / result.ours_s}};
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Tessera's collectives against MPI's own");
  int repeats = 21;
  std::string json_file;
  std::int64_t min_bytes = 4 << 10;
  std::int64_t max_bytes = 64 << 20;
  app.add_option("--repeats", repeats, "calls per size; the median counts")
      ->check(CLI::PositiveNumber);
  app.add_option("--json", json_file, "also write the results here");
  std::string only;
  app.add_option("--only", only, "one collective, such as all_reduce");
  app.add_option("--min-bytes", min_bytes, "smallest tensor");
  app.add_option("--max-bytes", max_bytes, "largest tensor");
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  const auto world = tessera::comm::mpi_world({});
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->new_group("bench", ranks);
  const bool prints = world->rank() == 0;

  const double copy = copy_bandwidth(repeats);
  nlohmann::json document = {
      {"ranks", world->size()},
      {"copy_bytes_per_second", copy},
      {"results", nlohmann::json::array()}};
  if (prints) {
    std::printf(
        "%d ranks; every rank copies %.2f GB/s while all copy\n"
        "%-15s %12s %24s %24s %7s %7s %15s\n",
        world->size(),
        copy / 1e9,
        "collective",
        "tensor",
        "ours",
        "MPI",
        "GB/s",
        "GB/s",
        "MPI / ours");
  }
  for (std::int64_t bytes = min_bytes; bytes <= max_bytes; bytes *= 4) {
    at::Tensor whole = at::zeros({bytes / 4});
    at::Tensor part = at::zeros({bytes / 4 / world->size()});
    for (const Contest& contest : contests(*group, whole, part)) {
      if (!only.empty() && contest.name != only) {
        continue;
      }
      const Measured result = measure(contest, bytes, repeats);
      document["results"].push_back(to_json(result));
      if (prints) {
        print(result);
      }
    }
  }
  if (prints && !json_file.empty()) {
    std::ofstream(json_file) << document.dump(1) << '\n';
  }
  return 0;
}
