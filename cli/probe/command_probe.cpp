#include <cstdio>
#include <memory>
#include <string>

#include "tessera/autotune/probe/probe.h"
#include "tessera/comm/world.h"
#include "tessera/planner/description.h"

#include "cli/allocator.h"
#include "cli/command.h"
#include "cli/plan/planning.h"
#include "cli/probe/cluster_tables.h"
#include "cli/text_file.h"

namespace tessera::cli {

namespace probe_command {
namespace {

struct Options {
  std::string output;
  autotune::Effort effort;
};

void run(const Options& options) {
  keep_freed_memory(); // as tessera train does
  const cost::Cluster cluster = autotune::measure_cluster_now(options.effort);
  if (comm::mpi_world({})->rank() != 0) {
    return;
  }
  std::fputs(to_tables(cluster).c_str(), stdout);
  if (!options.output.empty()) {
    write_text_file(options.output, planner::cluster_to_json(cluster));
    std::printf("written: %s\n", options.output.c_str());
  }
}

const RegisterCommand kProbe({
    "probe",
    "measure this machine for the planner: computation, links, collectives",
    [](CLI::App& app) {
      auto options = std::make_shared<Options>();
      app.add_option(
          "-o,--output", options->output, "write the cluster file that tessera plan reads");
      app.add_flag(
          "--quick", options->effort.quick, "fewer sizes, and of the collectives only all_reduce");
      app.footer(
          "Run it as the job will run:\n"
          "  tessera launch -n 4 -- tessera probe -o cluster.json\n"
          "Ranks of one host are measured alone first, then all together, "
          "since they share its cores.");
      app.callback([options] {
        if (options->effort.quick) {
          options->effort.seconds_a_point = 0.01;
        }
        run(*options);
      });
    },
});

} // namespace
} // namespace probe_command

} // namespace tessera::cli
