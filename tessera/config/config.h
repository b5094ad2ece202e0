#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace tessera::config {

/// What a run is asked to be. Every field is one key of the JSON form, under
/// the same name; `keys.h` holds each key's range, aliases and description, and
/// is the one table that parsing, validation, help and documentation follow.
///
/// An empty optional means "not said": the accessors below give the value that
/// is then in force. A Config may be built in code:
///   Config{.pipeline_parallel_degree = 2, .microbatches = 4, .ddp = true}
/// and is checked by `validate`, as a parsed one is.
///
/// Source: the library's documentation of `distribution` parameters; Karakus et
/// al. 2021, appendix I.1 and section 4.4.
struct Config {
  // -- Pipeline --
  /// Ranks that one model replica is cut into. Alias: partitions.
  int pipeline_parallel_degree = 1;
  /// Slices of a step's batch; 1 means no pipelining. Must divide the batch.
  int microbatches = 1;
  /// "interleaved", "simple" or "custom" (then `custom_schedule` is the order).
  std::string pipeline = "interleaved";
  /// Order at pp rank 0 of a custom pipeline: "0F 1F 0B 1B".
  std::optional<std::string> custom_schedule = {};
  /// Most microbatches that are started and not done. Not said: degree + 2.
  std::optional<int> active_microbatches = {};
  /// Execution servers handle requests in one order on all data-parallel ranks.
  bool deterministic_server = false;
  /// Records the order of requests for some steps and then repeats the fastest.
  bool static_mode = false;
  /// Steps that static mode records before it chooses.
  int static_mode_steps = 5;
  /// On top of static mode: tensors go from child to child directly.
  bool fast_mode = false;
  /// The same configuration gives the same bits in every run.
  bool reproducible = false;

  // -- Ranks --
  /// "cluster" (= DPT), "spread" (= TPD) or a permutation of D, P, T; the
  /// right-most letter varies fastest over ranks.
  std::string placement_strategy = "cluster";
  /// Data parallelism beside model parallelism.
  bool ddp = false;
  /// "auto" or "nccl".
  std::string ddp_dist_backend = "auto";
  /// TCP port of the data-parallel groups.
  std::optional<int> ddp_port = {};

  // -- Partition --
  /// Whether modules are assigned to pp ranks by the partitioner.
  bool auto_partition = true;
  /// pp rank of modules that no manual partition names; asked for when
  /// `auto_partition` is false and `partition` is empty.
  std::optional<int> default_partition = {};
  /// Manual partition: module path -> pp rank; empty when not said.
  std::map<std::string, int> partition = {};
  /// File the partition decision is written to, or read from with
  /// `load_partition`.
  std::optional<std::string> partition_file = {};
  bool load_partition = false;
  /// "memory" or "speed": objective of the automatic partition, and with tensor
  /// parallelism the distribution of transformer layers.
  std::string optimize = "memory";
  /// Share of memory, against computation, in the partitioner's cost, 0 to 1.
  /// Not said: 0.2 when `optimize` is "speed", else 0.8.
  std::optional<double> memory_weight = {};

  // -- Tracing and creation --
  /// Leaves out the tracing pass; costs then come from parameter sizes alone.
  bool skip_tracing = false;
  bool allow_ranks_without_parameters = false;
  /// Where the tracing pass runs: "auto" (the training device), "cpu", "gpu".
  std::string trace_device = "auto";
  /// Measures each module's forward time; makes the partition depend on clocks.
  bool trace_execution_times = false;
  /// Measures each module's memory instead of estimating it from its outputs.
  bool trace_memory_usage = false;
  /// No memory for parameters until the partition is known.
  bool delayed_parameter_initialization = false;

  // -- Tensor parallelism --
  /// Ranks over which tensor-parallel modules are distributed.
  int tensor_parallel_degree = 1;
  /// "1d": one matrix of a pair by columns, the other by rows (see `optimize`);
  /// "2d": all matrices and activations in blocks on a square mesh of ranks.
  std::string tensor_parallel_kind = "1d";
  /// Ranks of one tensor-parallel group are fed the same batch.
  bool prescaled_batch = false;

  // -- Precision --
  bool fp16 = false;
  /// Parameters of distributed modules are initialised in fp16.
  bool fp16_params = false;
  /// bfloat16 with sharded data parallelism.
  bool bf16 = false;

  // -- Memory --
  /// Moves checkpointed activations to the host until the backward needs them.
  bool offload_activations = false;
  /// How early they are brought back, in pipeline tasks.
  int activation_loading_horizon = 4;
  /// Shards optimizer state over ranks that hold the same parameters.
  bool shard_optimizer_state = false;

  // -- Sharded data parallelism --
  /// Ranks over which parameters, gradients and optimizer state are sharded.
  int sharded_data_parallel_degree = 1;
  /// Gradient bucket, in elements.
  std::int64_t sdp_reduce_bucket_size = 500'000'000;
  /// Tensors of fewer elements stay whole on every rank.
  std::int64_t sdp_param_persistence_threshold = 1'000'000;
  /// Most parameters (elements) gathered at one time.
  std::int64_t sdp_max_live_parameters = 1'000'000'000;
  /// Gathers inside each node first, then between nodes.
  bool sdp_hierarchical_allgather = true;
  /// L2 norm to which gradients are clipped.
  double sdp_gradient_clipping = 1.0;

  // -- Processes --
  /// Processes the launcher starts on each host. Not said: shared out evenly.
  std::optional<int> processes_per_host = {};
  /// More options for mpirun, as one line.
  std::string custom_mpi_options = {};

  // -- Tessera's own --
  /// Seed of every random number that the library draws.
  std::int64_t seed = 0;
  /// Longest blocking wait for a peer before the run ends with an error.
  double timeout_seconds = 1800.0;
  /// Shared buffers of one pair of ranks on one node.
  std::int64_t transport_buffer_bytes = std::int64_t{256} << 20;
  /// What ranks of one node talk through: "auto", "shm" or "mpi".
  std::string same_node_backend = "auto";

  bool operator==(const Config&) const = default;

  /// `active_microbatches`, or pipeline_parallel_degree + 2.
  int effective_active_microbatches() const;
  /// `memory_weight`, or 0.2 for "speed" and 0.8 for "memory".
  double effective_memory_weight() const;
  /// `default_partition`, or 0.
  int effective_default_partition() const;
};

/// Reads the JSON form: either the keys alone,
///   {"pipeline_parallel_degree": 2, "mpi": {"processes_per_host": 4}}
/// or the outer form of a job,
///   {"smdistributed": {"modelparallel":
///      {"enabled": true, "parameters": {"pipeline_parallel_degree": 2}}},
///    "mpi": {"enabled": true, "processes_per_host": 4}}.
/// `origin` (a file name) begins every message. Any bytes are safe.
/// Threads: any thread.
/// Throws: ConfigError holding every error of the text, one a line: unknown and
/// repeated keys, wrong types and ranges, broken couplings, and keys whose
/// function this version does not have.
Config parse_config(const std::string& json_text, const std::string& origin);

/// parse_config of a file; "parameters" of the outer form may then also be the
/// name of a JSON file, relative to this one.
/// Throws: ConfigError also when a file cannot be read.
Config load_config(const std::string& path);

/// Checks ranges, couplings and availability, as parsing does.
/// Throws: ConfigError holding every error.
void validate(const Config& config);

/// Checks the degrees against the number of processes: world = pipeline x
/// tensor x reduced data; more than one replica needs `ddp`.
/// Throws: ConfigError that says which number to change to what.
void check_world(const Config& config, int world_size);

/// The keys-alone form, every key with its value (those not said are left out);
/// parse_config reads it back to an equal Config.
std::string to_json(const Config& config);

} // namespace tessera::config
