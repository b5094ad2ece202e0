#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/config/config.h"
#include "tessera/timeline/timeline.h"
#include "tessera/topology/rank_layout.h"
#include "tessera/transport/transport.h"

namespace tessera {

using config::Config;
using topology::Group;

namespace train {

class StepEngine;

/// What `init` sets up: one per process.
struct Session {
  Config config;
  comm::WorldPtr world;
  std::unique_ptr<topology::RankLayout> layout;
  std::unique_ptr<comm::MeshGroups> groups;
  /// Second data-parallel group: agreements at the end of a step must not queue
  /// behind gradient buckets.
  comm::ProcessGroupPtr control;
  comm::ProcessGroupPtr rdp_control; // the same; with tensor parallelism only
  transport::TransportPtr transport; // among the ranks of this pipeline
  /// Where ranks must run tasks in one order: those of a TP_GROUP, whose tasks
  /// hold collectives, or with deterministic_server of a DP_GROUP.
  Group order_group = Group::kTP;
  transport::TransportPtr order_transport; // nullptr: each its own order
  std::unique_ptr<timeline::Recorder> recorder;
  bool tracing = false;
  /// Ends before everything it works with.
  std::shared_ptr<StepEngine> engine;

  comm::ProcessGroup& group(Group kind) const {
    return groups->at(kind);
  }
};

/// Throws: ConfigError before `init`.
Session& session();

} // namespace train

/// Starts the library: MPI, groups, buffers. The first call of a script.
/// Collective over all processes.
/// Throws: ReportedConfigError (every rank alike; rank 0 prints it) for a bad
/// config or a world that does not fit it; CommError when MPI lacks threads.
/// Source: the library's documentation, `init`.
void init(const Config& config);
/// From a JSON file.
void init(const std::string& config_file);

/// Ends the library in order: waits for all ranks, then closes groups and MPI.
/// Optional: a program that simply returns from main does the same.
void shutdown();

bool is_initialized();
/// True while the tracing pass of the first step runs the step function.
bool is_tracing();
const Config& config_in_force();

int rank();
int size();
int local_rank();
int local_size();
int pp_rank();
int pp_size();
int tp_rank();
int tp_size();
int dp_rank();
int dp_size();
int rdp_rank();
int rdp_size();
int mp_rank();
int mp_size();

/// Which part of the global batch this rank is fed, of how many: with
/// prescaled_batch the ranks of a TP_GROUP get the same, so it is rdp_rank of
/// rdp_size, else dp_rank of dp_size.
int data_rank();
int data_size();

/// Global ranks of this rank's group of a kind, ascending.
std::vector<int> group_ranks(Group group);

/// Waits for all ranks of the group. Collective over `group`.
void barrier(Group group = Group::kWorld);

/// Turns a rank inside this rank's group of a kind into a global rank.
/// Throws: ConfigError when there is no such rank.
int global_rank(int rank_in_group, Group group);

} // namespace tessera
