// The public functions of a process, and the only place that knows that it has one context.
#include "tessera/train/session.h"

#include <cstdio>
#include <cstdlib>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/share_activity.h"
#include "tessera/config/transfer_variables.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/diagnostics/uncaught_error.h"
#include "tessera/half/operators.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/random/operators.h"
#include "tessera/recompute/attentions.h"
#include "tessera/tensor/onednn.h"
#include "tessera/train/engine.h"

namespace tessera {

namespace {

/// What `init` sets up. The engine ends before the context that it works with.
struct Session {
  std::shared_ptr<Context> context;
  std::shared_ptr<train::StepEngine> engine;
};

std::unique_ptr<Session>& holder() {
  static auto* instance = new std::unique_ptr<Session>;
  return *instance;
}

Session& session() {
  if (holder() == nullptr) {
    throw ConfigError("tessera::init has not been called; call it first in main");
  }
  return *holder();
}

comm::WorldPtr start_world(const Config& config) {
  comm::WorldOptions options;
  options.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout_seconds * 1000));
  options.same_node = config.same_node_backend;
  return comm::mpi_world(options);
}

// MPI has not started: a bad variable is reported by the launcher's rank 0.
config::Launched launched_config(const Config& given) {
  const char* said = std::getenv(config::kLauncherVariable);
  const char* disable = std::getenv(config::kDisableTransferVariable);
  const char* bytes = std::getenv(config::kTransferBufferVariable);
  if (said == nullptr && disable == nullptr && bytes == nullptr) {
    return {given, {}};
  }
  diagnostics::report_uncaught_errors(diagnostics::Reporter::of_environment());
  config::Launched launched{given, {}};
  if (said != nullptr && *said != '\0') {
    launched = config::with_launcher_values(given, said);
  }
  config::Launched last = config::with_transfer_variables(launched.config, disable, bytes);
  last.changes.insert(last.changes.begin(), launched.changes.begin(), launched.changes.end());
  return last;
}

// After MPI has started, so that one rank speaks for all.
void check(const Config& config, const comm::World& world) {
  try {
    config::validate(config);
    config::check_world(config, world.size());
  } catch (const ConfigError& error) {
    // Where only this rank's configuration is wrong, this rank has to say so.
    if (diagnostics::speaks_for_all()) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    throw ReportedConfigError(error.what());
  }
}

nn::TensorParallel tensor_parallel_of(const Context& context) {
  const Config& config = context.config;
  nn::TensorParallel parallel;
  if (config.tensor_parallel_degree > 1) {
    parallel.group = &context.group(Group::kTP);
    parallel.distribution =
        config.optimize == "memory" ? nn::Distribution::kMemory : nn::Distribution::kSpeed;
    parallel.prescaled_batch = config.prescaled_batch;
    if (config.tensor_parallel_kind == "2d") {
      parallel.distribution = nn::Distribution::kTwoD;
      parallel.mesh = nn::summa::Mesh::make(*context.world, *parallel.group);
    }
  }
  return parallel;
}

} // namespace

namespace train {

StepEngine& engine() {
  return *session().engine;
}

} // namespace train

Context& context() {
  return *session().context;
}

namespace {

void start(const config::Launched& by_argument) {
  if (holder() != nullptr) {
    throw ConfigError("tessera::init was called twice");
  }
  avoid_faulty_amx();
  config::Launched launched = launched_config(by_argument.config);
  launched.changes.insert(
      launched.changes.begin(), by_argument.changes.begin(), by_argument.changes.end());
  const Config& config = launched.config;
  auto made = std::make_unique<Session>();
  const comm::WorldPtr world = start_world(config);
  log::set_rank(world->rank());
  diagnostics::report_uncaught_errors(
      {world->rank(), world->hosts()[world->rank()] == world->hosts()[0]});
  check(config, *world);
  if (world->rank() == 0) {
    for (const std::string& change : launched.changes) {
      log::info("config: " + change);
    }
    if (config.ddp_port) {
      log::warning(
          str("ddp_port ",
              *config.ddp_port,
              " changes nothing: groups meet through MPI, which needs no port; leave the key out"));
    }
  }
  if (config.fp16 || config.fp16_params) {
    half::support_processor();
  }
  if (config.bf16) {
    half::support_bf16_products();
    half::quicken_bf16();
  }
  if (config.random == config::RandomNumbers::kLayoutIndependent) {
    random::take_over_dropout();
    at::manual_seed(static_cast<std::uint64_t>(config.seed)); // first weights are drawn from it
  }
  made->context = make_context(config, world);
  comm::share_activity(*world, made->context->group(Group::kWorld));
  nn::set_tensor_parallel(tensor_parallel_of(*made->context));
  recompute::set_attentions(config.checkpoint_attentions);
  made->engine = std::make_shared<train::StepEngine>(*made->context);
  holder() = std::move(made);
}

} // namespace

void init(const Config& given) {
  start({given, {}});
}

void init(int& argc, char** argv, const Config& given) {
  // MPI has not started: a bad argument is reported by the launcher's rank 0.
  diagnostics::report_uncaught_errors(diagnostics::Reporter::of_environment());
  start(config::take_launcher_argument(given, argc, argv));
}

void init() {
  init(Config());
}

void init(const std::string& config_file) {
  // MPI has not started: an unreadable file is reported by the launcher's rank 0.
  diagnostics::report_uncaught_errors(diagnostics::Reporter::of_environment());
  init(config::load_config(config_file));
}

void shutdown() {
  barrier();
  nn::set_tensor_parallel({});
  recompute::set_attentions(false);
  diagnostics::activity::leave();
  holder().reset();
}

bool is_initialized() {
  return holder() != nullptr;
}

bool is_tracing() {
  return is_initialized() && train::engine().tracing();
}

const Config& config_in_force() {
  return context().config;
}

namespace {
int rank_in(Group group) {
  return context().group(group).rank();
}
int size_of(Group group) {
  return context().group(group).size();
}
} // namespace

int rank() {
  return context().world->rank();
}
int size() {
  return context().world->size();
}
int local_rank() {
  return context().world->local_rank();
}
int local_size() {
  return context().world->local_size();
}
int pp_rank() {
  return rank_in(Group::kPP);
}
int pp_size() {
  return size_of(Group::kPP);
}
int tp_rank() {
  return rank_in(Group::kTP);
}
int tp_size() {
  return size_of(Group::kTP);
}
int dp_rank() {
  return rank_in(Group::kDP);
}
int dp_size() {
  return size_of(Group::kDP);
}
int rdp_rank() {
  return rank_in(Group::kRDP);
}
int rdp_size() {
  return size_of(Group::kRDP);
}
int mp_rank() {
  return rank_in(Group::kMP);
}
int mp_size() {
  return size_of(Group::kMP);
}

int data_rank() {
  return context().data_rank();
}
int data_size() {
  return context().data_size();
}
DataRows data_rows(std::int64_t batch) {
  const DataShares::Rows rows = context().shares.rows_of(data_rank(), batch);
  return {rows.begin, rows.count};
}
double data_weight() {
  return context().data_weight();
}

std::vector<int> group_ranks(Group group) {
  return context().group(group).ranks();
}

comm::ProcessGroup& process_group(Group group) {
  if (!config_in_force().ddp) {
    throw ConfigError(
        str("process_group of ",
            topology::name_of(group),
            ": only a job with \"ddp\": true hands out its groups; write that, or use barrier, "
            "broadcast and allgather"));
  }
  return context().group(group);
}

void barrier(Group group) {
  train::engine().model_set()->check_may_wait("barrier", context().group(group).ranks());
  context().group(group).barrier();
}
void dp_barrier() {
  barrier(Group::kDP);
}
void mp_barrier() {
  barrier(Group::kMP);
}

int global_rank(int rank_in_group, Group group) {
  const auto& ranks = context().group(group).ranks();
  if (rank_in_group < 0 || rank_in_group >= static_cast<int>(ranks.size())) {
    throw ConfigError(
        str("rank ",
            rank_in_group,
            " of group ",
            topology::name_of(group),
            " was named; it has ranks 0 to ",
            ranks.size() - 1));
  }
  return ranks[rank_in_group];
}

} // namespace tessera
