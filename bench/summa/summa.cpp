// C = A B by SUMMA on a mesh, beside ScaLAPACK's psgemm on the same ranks and
// beside one process with two threads. Run under mpirun with q * r processes:
//
//   mpirun -n 4 bench_summa [--sizes 1024,2048,4096] [--rounds 10] [--json]
//
// Every round times each way once, one after the other, so that whatever else
// the machine does meets all of them alike. Each rank has one thread; while one
// process computes alone, the others sleep.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <time.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/product.h"

#include "bench/summa/scalapack.h"
#include "bench/support/measure.h"

namespace {

using tessera::bench::milliseconds_of;
using tessera::bench::summary_of;
using tessera::nn::Blocks;
using tessera::nn::summa::Form;
using tessera::nn::summa::Mesh;
using tessera::nn::summa::MeshBlocks;
using tessera::nn::summa::MeshOptions;
using tessera::nn::summa::MeshPtr;

struct Settings {
  std::vector<int> sizes = {1024, 2048, 4096};
  int rounds = 10;
  int threads = 2;
  bool json = false;
};

struct Taken {
  std::vector<double> wall_ms;
  std::vector<double> cpu_ms; // of all ranks together
};
using Times = std::map<std::string, Taken>;

/// Processor time of this process so far, all threads.
double cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

class Bench {
 public:
  Bench(tessera::comm::World& world, const Settings& settings)
      : settings_(settings), world_(world) {
    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = world.new_group("mesh", ranks);
    shared_ = Mesh::make(world, *group_);
    MeshOptions options;
    options.shared_memory = false;
    sent_ = Mesh::make(world, *group_, options);
  }

  Times measure(std::int64_t n) {
    const MeshBlocks blocks(*shared_, n);
    const auto rows = blocks.over_rows.size(shared_->row());
    const auto columns = blocks.over_columns.size(shared_->column());
    torch::manual_seed(world_.rank());
    const at::Tensor a = torch::randn({rows, columns});
    const at::Tensor b = torch::randn({rows, columns});
    const at::Tensor c = torch::empty({rows, columns});
    const at::Tensor placed_a = shared_->exchange().allocate(a.sizes(), a.options());
    const at::Tensor placed_b = shared_->exchange().allocate(b.sizes(), b.options());
    placed_a.copy_(a);
    placed_b.copy_(b);
    const bool first = world_.rank() == 0;
    at::Tensor whole_a;
    at::Tensor whole_b;
    at::Tensor whole_c;
    if (first) {
      whole_a = torch::randn({n, n});
      whole_b = torch::randn({n, n});
      whole_c = torch::empty({n, n});
    }
    tessera::bench::Scalapack scalapack(shared_->rows(), shared_->columns(), n);

    const auto summa = [&](const Mesh& mesh, const at::Tensor& x, const at::Tensor& y) {
      tessera::nn::summa::multiply(mesh, Form::kAB, x, y, blocks, c);
    };
    Times times;
    for (int round = -2; round < settings_.rounds; ++round) {
      timed(times, round, "one process", [&] {
        if (first) {
          torch::set_num_threads(settings_.threads);
          at::mm_out(whole_c, whole_a, whole_b);
          torch::set_num_threads(1);
        }
      });
      timed(times, round, "summa, in place", [&] { summa(*shared_, placed_a, placed_b); });
      timed(times, round, "summa, staged", [&] { summa(*shared_, a, b); });
      timed(times, round, "summa, sent", [&] { summa(*sent_, a, b); });
      if (tessera::bench::Scalapack::available()) {
        timed(times, round, "ScaLAPACK psgemm", [&] { scalapack.multiply(); });
      }
    }
    shared_->exchange().wait_for_readers();
    return times;
  }

 private:
  /// Until the last rank is done, seen from rank 0.
  void timed(Times& times, int round, const std::string& name, const std::function<void()>& run) {
    group_->barrier();
    const double cpu_before = cpu_ms();
    const double time = milliseconds_of([&] {
      run();
      group_->barrier();
    });
    const at::Tensor cpu = torch::full({1}, cpu_ms() - cpu_before, at::kDouble);
    group_->all_reduce(cpu);
    if (round >= 0) {
      times[name].wall_ms.push_back(time);
      times[name].cpu_ms.push_back(cpu.item<double>());
    }
  }

  Settings settings_;
  tessera::comm::World& world_;
  tessera::comm::ProcessGroupPtr group_;
  MeshPtr shared_;
  MeshPtr sent_;
};

void report(const Settings& settings, std::int64_t n, const Times& times) {
  const double flops = 2.0 * std::pow(static_cast<double>(n), 3);
  const double alone = summary_of(times.at("one process").wall_ms).best;
  nlohmann::json document = {{"benchmark", "summa"}, {"n", n}};
  for (const auto& [name, measured] : times) {
    const auto summary = summary_of(measured.wall_ms);
    const double cpu = summary_of(measured.cpu_ms).median;
    document["ways"][name] = {
        {"best_ms", summary.best},
        {"median_ms", summary.median},
        {"cpu_ms", cpu},
        {"gflops", flops / summary.best / 1e6},
        {"of_one_process", alone / summary.best}};
    if (!settings.json) {
      std::printf(
          "%6lld  %-18s %9.2f %9.2f %9.2f %8.1f %8.3f\n",
          static_cast<long long>(n),
          name.c_str(),
          summary.best,
          summary.median,
          cpu,
          flops / summary.best / 1e6,
          alone / summary.best);
    }
  }
  if (settings.json) {
    std::printf("%s\n", document.dump().c_str());
  }
}

int run(const Settings& settings) {
  const auto world = tessera::comm::mpi_world({});
  Bench bench(*world, settings);
  if (world->rank() == 0 && !settings.json) {
    std::printf(
        "%6s  %-18s %9s %9s %9s %8s %8s\n",
        "N",
        "f32",
        "best ms",
        "median",
        "CPU ms",
        "GFLOP/s",
        "of one");
  }
  for (const int n : settings.sizes) {
    const Times times = bench.measure(n);
    if (world->rank() == 0) {
      report(settings, n, times);
      std::fflush(stdout);
    }
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("SUMMA on a mesh, beside ScaLAPACK and one process");
  Settings settings;
  app.add_option("--sizes", settings.sizes, "N of the N x N matrices")->delimiter(',');
  app.add_option("--rounds", settings.rounds, "timed rounds")->check(CLI::PositiveNumber);
  app.add_option("--threads", settings.threads, "of the one process")->check(CLI::PositiveNumber);
  app.add_flag("--json", settings.json, "one JSON line for each N");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  try {
    return run(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
