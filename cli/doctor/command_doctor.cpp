#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>

#include <unistd.h>

#include <ATen/Parallel.h>

#include "tessera/autotune/probe/measure_pairs.h"
#include "tessera/base/error.h"
#include "tessera/base/host.h"
#include "tessera/comm/world.h"

#include "cli/blas_kernel.h"
#include "cli/command.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/measure.h"
#include "cli/doctor/mpi_start.h"
#include "cli/launch/leftovers.h"
#include "cli/machine.h"

namespace tessera::cli {

namespace doctor_command {
namespace {

using namespace doctor;

struct Options {
  bool json = false;
  bool products_only = false;
  int most_ranks = 16;
};

// A rank that cannot be reached must not keep the others for long.
constexpr std::chrono::seconds kTimeout(60);

std::vector<std::string> features_that_matter() {
  const auto all = processor_features();
  std::vector<std::string> found;
  for (const char* name : {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (all.count(name) > 0) {
      found.emplace_back(name);
    }
  }
  return found;
}

RankFacts facts_of_machine(const MpiFacts& mpi) {
  RankFacts facts;
  facts.rank = mpi.rank;
  facts.host = host_name();
  facts.mpi = mpi.provider;
  facts.thread_level = mpi.thread_level;
  facts.processor = processor_name();
  facts.features = features_that_matter();
  facts.cores = this_machine().cores;
  facts.threads = at::get_num_threads();
  facts.memory = host_memory();
  return facts;
}

void measure_alone(RankFacts& facts) {
  facts.products = measure_products();
  facts.copy_bytes_per_s = measure_copy();
}

/// True when training is possible; the same on all ranks but those that have
/// nothing to print and return true.
bool finish(Examination& examination, const Options& options) {
  examination.findings = judge(examination);
  if (const auto left = find_leftovers(LeftoverPlaces::usual()); !left.empty()) {
    examination.findings.push_back(
        {false,
         str(summary(left), " on host ", host_name(), ", such as ", left.front().path),
         "tessera launch removes them before it starts the next run",
         {0}});
  }
  const std::string text = options.json ? to_json(examination) + "\n" : to_tables(examination);
  std::fputs(text.c_str(), stdout);
  return !any_fatal(examination.findings);
}

bool examine_together(comm::World& world, RankFacts facts, const Options& o) {
  std::vector<int> everyone(static_cast<std::size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto group = world.new_group("doctor", everyone);
  facts.host = world.hosts()[static_cast<std::size_t>(world.rank())];
  facts.local_rank = world.local_rank();
  facts.local_size = world.local_size();
  group->barrier(); // all compute at the same time, as in training
  measure_alone(facts);
  group->barrier();
  if (facts.local_rank == 0) {
    facts.products.trial = try_better_kernel(
        facts.products.kernel, std::filesystem::read_symlink("/proc/self/exe").string());
  }
  group->barrier();
  measure_clock(world, facts);
  Examination examination;
  examination.all_reduce_bytes_per_s = measure_all_reduce(*group);
  auto links = autotune::measure_pairs(world, *group, o.most_ranks);
  examination.pairs = std::move(links.pairs);
  examination.unmeasured = std::move(links.unmeasured);
  gather(world, *group, facts, examination);
  return world.rank() != 0 || finish(examination, o);
}

bool examine(const Options& options) {
  const MpiFacts mpi = start_mpi();
  RankFacts facts = facts_of_machine(mpi);
  if (mpi.thread_level != "multiple") {
    // No world can be built: each rank has its own machine to tell of.
    measure_alone(facts);
    Examination examination;
    examination.ranks.push_back(facts);
    return mpi.rank != 0 || finish(examination, options);
  }
  comm::WorldOptions world_options;
  world_options.timeout = kTimeout;
  const auto world = comm::mpi_world(world_options);
  try {
    return examine_together(*world, std::move(facts), options);
  } catch (const std::exception& error) {
    if (world->size() > 1) {
      // The others wait for this rank: end them too. Does not return.
      world->abort(error.what(), 1);
    }
    throw;
  }
}

void run(const Options& options) {
  if (options.products_only) {
    const ProductFacts facts = measure_products();
    std::printf(
        "%s %.3f\n", facts.kernel.empty() ? "none" : facts.kernel.c_str(), facts.f32_gflops);
    return;
  }
  if (!examine(options)) {
    throw CLI::RuntimeError(1);
  }
}

const RegisterCommand kDoctor({
    "doctor",
    "check MPI, BLAS, precision, memory, clocks and the speed between ranks",
    [](CLI::App& app) {
      auto options = std::make_shared<Options>();
      app.add_flag("--json", options->json, "print JSON instead of tables");
      app.add_option(
             "--most-ranks",
             options->most_ranks,
             "measure all pairs of up to this many ranks; of more, a few of every host")
          ->check(CLI::Range(2, 1 << 20))
          ->capture_default_str();
      app.add_flag("--products-only", options->products_only)->group("");
      app.footer(
          "Run it alone for this machine, or as the job will run:\n"
          "  tessera launch -n 4 -- tessera doctor\n"
          "Exit status 1: training is impossible; warnings leave it 0.");
      app.callback([options] { run(*options); });
    },
});

} // namespace
} // namespace doctor_command

} // namespace tessera::cli
