#include "tessera/train/session.h"

#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/comm/share_activity.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/diagnostics/uncaught_error.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/train/engine.h"

namespace tessera {

namespace train {

namespace {
std::unique_ptr<Session>& holder() {
  static auto* instance = new std::unique_ptr<Session>;
  return *instance;
}
} // namespace

Session& session() {
  if (holder() == nullptr) {
    throw ConfigError("tessera::init has not been called; call it first in main");
  }
  return *holder();
}

} // namespace train

void init(const Config& config) {
  if (train::holder() != nullptr) {
    throw ConfigError("tessera::init was called twice");
  }
  auto made = std::make_unique<train::Session>();
  made->config = config;
  comm::WorldOptions options;
  options.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout_seconds * 1000));
  options.same_node = config.same_node_backend;
  made->world = comm::mpi_world(options);
  comm::World& world = *made->world;
  diagnostics::report_uncaught_errors(
      {world.rank(), world.hosts()[world.rank()] == world.hosts()[0]});
  // Checked after MPI has started, so that one rank speaks for all.
  try {
    config::validate(config);
    config::check_world(config, world.size());
  } catch (const ConfigError& error) {
    if (world.rank() == 0) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    throw ReportedConfigError(error.what());
  }
  topology::Degrees degrees;
  degrees.pipeline = config.pipeline_parallel_degree;
  degrees.tensor = config.tensor_parallel_degree;
  degrees.reduced_data = world.size() / (degrees.pipeline * degrees.tensor);
  made->layout = std::make_unique<topology::RankLayout>(
      degrees, topology::Placement(config.placement_strategy));
  made->groups = std::make_unique<comm::MeshGroups>(world, *made->layout);
  comm::share_activity(world, made->groups->at(Group::kWorld));
  const auto& dp = made->groups->at(Group::kDP).ranks();
  made->control = world.new_group("dp control", dp);
  if (degrees.tensor > 1) {
    made->rdp_control = world.new_group("rdp control", made->groups->at(Group::kRDP).ranks());
  }
  transport::Options buffers;
  buffers.buffer_bytes = config.transport_buffer_bytes;
  if (degrees.pipeline > 1) {
    made->transport =
        transport::make_transport(world, made->groups->at(Group::kPP).ranks(), buffers);
    made->order_group = config.deterministic_server ? Group::kDP : Group::kTP;
    const auto& ordered = made->groups->at(made->order_group).ranks();
    if (ordered.size() > 1) {
      transport::Options small;
      small.buffer_bytes = 1 << 20; // orders carry no tensors
      made->order_transport = transport::make_transport(world, ordered, small);
    }
  }
  nn::TensorParallel parallel;
  if (degrees.tensor > 1) {
    parallel.group = &made->groups->at(Group::kTP);
    parallel.distribution =
        config.optimize == "memory" ? nn::Distribution::kMemory : nn::Distribution::kSpeed;
    parallel.prescaled_batch = config.prescaled_batch;
    if (config.tensor_parallel_kind == "2d") {
      parallel.distribution = nn::Distribution::kTwoD;
      parallel.mesh = nn::two_d::Mesh::make(world, *parallel.group);
    }
  }
  nn::set_tensor_parallel(parallel);
  made->recorder = std::make_unique<timeline::Recorder>(
      world.rank(), made->layout->coordinates(world.rank()).pp);
  train::holder() = std::move(made);
  train::session().engine = std::make_shared<train::StepEngine>();
}

void init(const std::string& config_file) {
  // MPI has not started: an unreadable file is reported by the launcher's rank 0.
  diagnostics::report_uncaught_errors(diagnostics::Reporter::of_environment());
  init(config::load_config(config_file));
}

void shutdown() {
  barrier();
  nn::set_tensor_parallel({});
  diagnostics::activity::leave();
  train::holder().reset();
}

bool is_initialized() {
  return train::holder() != nullptr;
}

bool is_tracing() {
  return is_initialized() && train::session().tracing;
}

const Config& config_in_force() {
  return train::session().config;
}

namespace {
int rank_in(Group group) {
  return train::session().group(group).rank();
}
int size_of(Group group) {
  return train::session().group(group).size();
}
} // namespace

int rank() {
  return train::session().world->rank();
}
int size() {
  return train::session().world->size();
}
int local_rank() {
  return train::session().world->local_rank();
}
int local_size() {
  return train::session().world->local_size();
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
  return config_in_force().prescaled_batch ? rdp_rank() : dp_rank();
}
int data_size() {
  return config_in_force().prescaled_batch ? rdp_size() : dp_size();
}

std::vector<int> group_ranks(Group group) {
  return train::session().group(group).ranks();
}

void barrier(Group group) {
  train::session().group(group).barrier();
}

int global_rank(int rank_in_group, Group group) {
  const auto& ranks = train::session().group(group).ranks();
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
