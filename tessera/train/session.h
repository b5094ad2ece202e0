#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/config.h"
#include "tessera/topology/rank_layout.h"

namespace tessera {

namespace comm {
class ProcessGroup;
}
struct Context;
using config::Config;
using topology::Group;

namespace train {

class StepEngine;

/// Returns the process's own. Throws: ConfigError before `init`.
StepEngine& engine();

} // namespace train

/// Returns the version of the library that a program is linked with, "0.1.0": major, minor, patch
/// (tessera/base/version.h). Not collective.
const char* version();

/// Starts the library: MPI, groups, buffers. The first call of a script.
/// Collective over all processes.
/// Throws: ReportedConfigError (every rank alike; rank 0 prints it) for a bad
/// config or a world that does not fit it; CommError when MPI lacks threads.
///
/// What a launcher says in the environment variable SM_HP_MP_PARAMETERS, a JSON object of keys,
/// wins over `config`; the log of rank 0 names each key that it changed.
/// Throws also: ConfigError for a variable that is no such object.
/// Source: the library's documentation, `init`.
void init(const Config& config);
/// With what the launcher says, and defaults.
void init();
/// From a JSON file.
void init(const std::string& config_file);
/// Takes what a launcher says in the argument `--mp_parameters key=value,...` out of the program's
/// arguments; it wins over `config`, and SM_HP_MP_PARAMETERS over both.
/// Throws also: ConfigError for an argument that has another form.
void init(int& argc, char** argv, const Config& config = {});

/// Ends the library in order: waits for all ranks, then closes groups and MPI.
/// Optional: a program that simply returns from main does the same.
void shutdown();

bool is_initialized();
/// True while the tracing pass of the first step runs the step function.
bool is_tracing();
const Config& config_in_force();

/// Groups, transport and recorder that `init` made (tessera/context/context.h), for scripts that
/// communicate themselves or read what was recorded. Throws: ConfigError before `init`.
Context& context();

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

/// A run of the rows (samples) of a batch.
struct DataRows {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  bool operator==(const DataRows&) const = default;
};

/// Returns which rows of a global batch of `batch` rows this rank is fed: those of its data_rank,
/// equally many for all or as the key `replica_samples` says.
///     const auto [begin, count] = tessera::data_rows(x.size(0));
///     x = x.narrow(0, begin, count);
/// Not collective. Throws: ShapeError for a batch of another size than the sum of
/// `replica_samples`, or without the key for one that data_size() does not divide.
DataRows data_rows(std::int64_t batch);
/// Returns by how much a mean over this rank's samples counts in a mean over the data ranks: the
/// mean of data_weight() x loss over them is the loss of the whole batch. 1 without
/// `replica_samples`. Not collective.
double data_weight();

/// Returns global ranks of this rank's group of a kind, ascending.
std::vector<int> group_ranks(Group group);

/// Returns this rank's group of a kind, for collectives of the script's own
/// (tessera/comm/process_group.h); it lives until `shutdown`. Calls of its collectives must come in
/// one order on all its ranks, so a script makes them between steps. Not collective.
/// Throws: ConfigError before `init`, and without "ddp": true.
comm::ProcessGroup& process_group(Group group);

/// Waits for all ranks of the group. Collective over `group`. Throws: UserError inside a step of a
/// pipeline for a group of several pp_ranks.
void barrier(Group group = Group::kWorld);
/// Collective over the DP_GROUP.
void dp_barrier();
/// Collective over the MP_GROUP.
void mp_barrier();

/// Turns a rank inside this rank's group of a kind into a global rank.
/// Throws: ConfigError when there is no such rank.
int global_rank(int rank_in_group, Group group);

} // namespace tessera
